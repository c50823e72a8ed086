//go:build long

package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// The test performs a rolling update as Kubernetes does: each of ten pods receives SIGTERM only once its successor is ready. The pods use
// the default intervals, so a job whose wake-up is lost waits up to ten seconds for a poll. The test does not run in parallel with others,
// because it enforces a time limit on delays.
func TestRollingUpdateOfTenPods(t *testing.T) {
	is := is.New(t)
	const pods = 10
	w := newWorld(t, pgtest.URL(t))
	var before []*pod
	for i := range pods {
		before = append(before, w.start(podConfig{Name: fmt.Sprintf("before-%d", i), Defaults: true}, ""))
	}
	stop := w.load(4, 100*time.Millisecond)
	began := w.now()
	for i, old := range before {
		w.start(podConfig{Name: fmt.Sprintf("after-%d", i), Defaults: true}, "")
		had := w.ended()
		old.signal(syscall.SIGTERM)
		is.Equal(old.waitExit(t, shutdownGrace+10*time.Second).ExitCode(), 0)
		w.waitMore(time.Minute, had, 100) // until the rest of the fleet has finished more jobs
	}
	over := w.now()
	stop()
	w.finish() // no job is lost or duplicated
	is.True(w.yes(`select count(*) = $1 from trapeze.pods where name like 'before-%' and closed = 'left'`, pods))
	// Jobs with a subject are not counted, because they may have to wait for another job of the same subject.
	const delays = ` from trapeze.jobs j join (select job, min(at) as at from starts group by job) s on s.job = j.id
		where j.step = 0 and j.subject = '' and j.created_at between $1 and $2`
	const worst = ` from (select percentile_disc(0.99) within group (order by extract(epoch from s.at - j.created_at)::float8) as p99` + delays + `
		group by date_bin('1 second', j.created_at, 'epoch')) of_each_second`
	p99, n := read[float64](w, `select max(p99)`+worst, began, over), read[int](w, `select count(*)`+delays, began, over)
	t.Logf("%d jobs, from submission to start: the p99 of the worst second is %.3f s", n, p99)
	is.True(n > 200)
	is.True(p99 < 1)
}
