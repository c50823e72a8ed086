package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// parkKeyed inserts n rows of parked that wait for places of the given number of keys, without the rest of the jobs, until the benchmark ends.
func (w *world) parkKeyed(n, keys int) {
	w.t.Helper()
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject, key)
		select -n, 'key', now(), 1, 10, 'default', 'k', '', 'other-' || n % $2 from generate_series(1, $1) n`, n, keys)
	w.t.Cleanup(func() { w.exec(`delete from trapeze.parked where id < 0`) })
}

// BenchmarkAdmitKeys measures the admission of 100 jobs after their predecessors' ends: jobs of one key and of a hundred, alone and beside a million
// parked jobs of 100,000 other keys. Run it with -benchtime 20x. The metrics are medians per job.
func BenchmarkAdmitKeys(b *testing.B) {
	for _, others := range []int{0, 1_000_000} {
		for _, keys := range []int{1, 100} {
			b.Run(fmt.Sprintf("%d/%d others", keys, others), func(b *testing.B) {
				const batch = 100
				w := newWorld(b)
				podID := w.pod("a")
				w.exec(`update trapeze.pods set slots = 100`)
				w.parkKeyed(others, 100_000)
				var changes []func(*store.NewJob)
				var lines []store.Line
				for k := range keys {
					lines = append(lines, store.Line{Key: fmt.Sprint("key-", k)})
				}
				for i := range batch*(b.N+10) + 400*keys {
					changes = append(changes, keyed(lines[i%keys].Key))
				}
				for part := range slices.Chunk(changes, 10_000) {
					w.put(part...)
				}
				w.exec(`vacuum analyze trapeze.live, trapeze.jobs, trapeze.parked`)
				for admitted := 1; admitted > 0; {
					jobs, err := w.AdmitNext(w.ctx(), lines...)
					w.is.NoErr(err)
					admitted = len(jobs)
				}
				var took []float64
				for i := range b.N + 10 {
					var ends []store.Ending
					for _, c := range w.claims(podID, batch) {
						ends = append(ends, ending(c))
					}
					_, err := w.Finish(w.ctx(), podID, ends)
					w.is.NoErr(err)
					began := time.Now()
					jobs, err := w.AdmitNext(w.ctx(), lines...)
					w.is.NoErr(err)
					w.is.Equal(len(jobs), batch)
					if i >= 10 {
						took = append(took, float64(time.Since(began).Microseconds())/batch)
					}
				}
				slices.Sort(took)
				b.ReportMetric(took[len(took)/2], "µs/job")
			})
		}
	}
}
