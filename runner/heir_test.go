package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// An end gives the guard of its job's subject to the subject's next job, but its reply is lost. The pod wakes up for that job without a
// heartbeat, which would hide a missing wake-up.
func TestSubjectsNextJobReplyLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end func(*raw) *runner.Outcome
		cut func(*faultnet.Proxy) <-chan struct{}
	}{
		"with writes": {
			func(j *raw) *runner.Outcome {
				return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
					return err
				})
			},
			func(p *faultnet.Proxy) <-chan struct{} { done, _ := p.CutReply("insert into rows"); return done },
		},
		"without writes": {
			func(*raw) *runner.Outcome { return runner.Done("result-of-k") },
			func(p *faultnet.Proxy) <-chan struct{} { return p.CutReplyOnce(holds("result-of-k")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			exec(t, pgtest.Connect(t, url), `create table rows (job bigint)`)
			proxy, pool := cable(t, url)
			wait, open := latch(t)
			r := start(t, pool, silent, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) { <-wait; return c.end(j), nil }})
			pgtest.Wait(t, "the pod listens, which wakes it", func() bool { return metricValue(t, r, "trapeze_listen_connected") == 1 })
			enqueue(t, r, rawArgs("k"), runner.Subject("s"))
			next := enqueue(t, r, rawArgs("k"), runner.Subject("s"))
			cut := c.cut(proxy)
			open()
			<-cut
			pgtest.WaitFor(t, 20*time.Second, "the next job has ended", func() bool {
				j, err := r.GetJob(t.Context(), next)
				is.NoErr(err)
				return j.State == job.Succeeded
			})
		})
	}
}
