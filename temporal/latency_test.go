package temporal_test

import (
	"context"
	"crypto/rand"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

// BenchmarkHop measures the time between the end of one step and the start of the next, in lanes on both engines.
func BenchmarkHop(b *testing.B) {
	for _, engine := range []string{job.EnginePostgreSQL, temporal.Name} {
		b.Run(engine, func(b *testing.B) {
			var ended time.Time
			var hops []time.Duration
			done := make(chan struct{})
			w := open(b, pgtest.Pool(b), temporal.Options{Prefix: rand.Text()}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
				if j.Step() > 0 {
					hops = append(hops, time.Since(ended))
				}
				if ended = time.Now(); j.Step() == 50 {
					close(done)
					return nil, nil
				}
				return runner.Then(rawKind("k")), nil
			}})
			w.start()
			w.move(job.DefaultLane, engine)
			b.ResetTimer()
			for range b.N {
				done, hops = make(chan struct{}), hops[:0]
				w.enqueue("k", `{}`)
				<-done
			}
			slices.Sort(hops)
			b.ReportMetric(float64(hops[len(hops)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(hops[len(hops)*95/100].Microseconds())/1000, "p95-ms")
		})
	}
}

// BenchmarkJobs measures how many empty jobs end per second.
func BenchmarkJobs(b *testing.B) {
	for _, engine := range []string{job.EnginePostgreSQL, temporal.Name} {
		b.Run(engine, func(b *testing.B) {
			is := is.New(b)
			w := open(b, pgtest.Pool(b), temporal.Options{Prefix: rand.Text()}, map[string]handler{"k": nothing})
			w.start()
			w.move(job.DefaultLane, engine)
			const jobs = 400
			began := cpu()
			b.ResetTimer()
			for range b.N {
				list := make([]job.Args, jobs)
				for i := range list {
					list[i] = rawKind("k")
				}
				ids, err := w.EnqueueMany(b.Context(), list)
				is.NoErr(err)
				pgtest.WaitFor(b, 5*time.Minute, "all jobs have ended", func() bool {
					n := 0
					is.NoErr(w.pool.QueryRow(b.Context(), `select count(*) from trapeze.done where id = any($1)`, ids).Scan(&n))
					return n == jobs
				})
			}
			b.ReportMetric(float64(jobs*b.N)/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(float64((cpu()-began).Microseconds())/1000/float64(jobs*b.N), "cpu-ms/job")
		})
	}
}

// cpu returns the CPU time of this process, which includes the Temporal server and the workers, but not PostgreSQL.
func cpu() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // cannot fail with this argument
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
