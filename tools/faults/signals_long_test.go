//go:build long

package faults

import (
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestAllPodsMayDieTogether(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	names := []string{"one", "two", "three"}
	stop := w.load(2, 100*time.Millisecond)
	for range 2 {
		before := w.ended()
		var pods []*pod
		for _, name := range names {
			pods = append(pods, w.launch(podConfig{Name: name}, ""))
		}
		w.waitMore(20*time.Second, before, 100)
		for _, p := range pods {
			p.signal(syscall.SIGKILL)
		}
		for _, p := range pods {
			<-p.ended
		}
	}
	stop()
	for _, name := range names {
		w.launch(podConfig{Name: name}, "")
	}
	h := w.finish()
	is.True(h.counts["job.recovered"] > 0) // some pods died while running jobs
}
