package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/trapeze-run/trapeze/temporal"
)

func TestTemporalJobsWithWorkersKilled(t *testing.T) {
	w := newWorld(t, temporal.Name)
	w.start("pod-0", "")
	w.start("pod-1", "")
	w.load(4, 300)
	for n := range 4 {
		before := w.endedJobs()
		w.wait("jobs end", func() bool { return w.endedJobs() > before+4 })
		w.pods[n].kill()
		w.start(fmt.Sprint("pod-", n+2), "")
	}
	w.finish()
}

func TestTemporalJobsAllPodsKilled(t *testing.T) {
	w := newWorld(t, temporal.Name)
	w.start("pod-0", "")
	w.start("pod-1", "")
	w.load(3, 300)
	w.wait("jobs end", func() bool { return w.endedJobs() > 4 })
	w.pods[0].kill()
	w.pods[1].kill()
	w.start("pod-2", "")
	w.finish()
}

func TestTemporalJobsServerKilled(t *testing.T) {
	w := newWorld(t, temporal.Name)
	w.start("pod-0", "")
	w.start("pod-1", "")
	for range 3 {
		before := w.endedJobs()
		w.load(1, 300)
		w.wait("jobs end", func() bool { return w.endedJobs() > before+3 })
		w.server.kill()
		w.load(1, 300) // accepted while no server responds
		w.startServer()
	}
	w.finish()
}

func TestTemporalJobsServerDataLost(t *testing.T) {
	w := newWorld(t, temporal.Name)
	w.start("pod-0", "")
	w.load(2, 300)
	w.wait("jobs end", func() bool { return w.endedJobs() > 4 })
	w.server.kill()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(w.role.Server.File + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	w.startServer()
	w.finish()
}
