//go:build failpoints

package faults

import (
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// A process is killed or frozen after it has submitted the job for a schedule's occurrence but before it commits. The occurrence must leave
// no trace, and another process must fire it.
func TestPodDeathBeforeOccurrenceCommit(t *testing.T) {
	for _, action := range []string{"kill", "stop"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			w := newWorld(t, pgtest.URL(t))
			armed := w.start(podConfig{Name: "armed"}, failpoint.FireCommit+"="+action)
			w.schedule("s", "*/2 * * * * *")
			pgtest.Wait(t, "it has submitted", func() bool { return armed.log.says("failpoint " + failpoint.FireCommit) })
			is.Equal(w.fires(), 0) // nothing about the occurrence is visible
			w.start(podConfig{Name: "other"}, "")
			pgtest.Wait(t, "the other one fires", func() bool { return w.fires() >= 3 })
			is.True(read[float64](w, `select max(extract(epoch from decided_at - fire_at))::float8 from trapeze.schedule_occurrences`) < 8) // every occurrence fired within 8 seconds
			if action == "kill" {
				armed.waitKilled(t)
			} else {
				armed.signal(syscall.SIGCONT) // the pod sends its commit too late
				before := w.fires()
				pgtest.WaitFor(t, 20*time.Second, "fires go on", func() bool { return w.fires() >= before+2 })
			}
			w.stopOccurrences()
			w.checkOccurrences(2)
		})
	}
}
