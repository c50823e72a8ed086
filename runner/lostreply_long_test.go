//go:build long

package runner_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The connection breaks while a statement is still waiting for a lock on the server, so reading the outcome back finds nothing. The
// repeated statement then waits behind the original one, which takes effect.
func TestLockedStatementOutlivesConnection(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"finish", "enqueue", "enqueue with a key", "enqueue with a unique key"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			direct := pgtest.Connect(t, url)
			proxy, pool := cable(t, url)
			reader := newRunner(t, direct, runner.Options{}, nil)
			wait, open := latch(t)
			ran := make(chan string, 10)
			o := named("a")
			o.LeaseDuration, o.HeartbeatInterval = 10*time.Second, time.Second
			r := start(t, pool, o, map[string]handler{
				"a": func(context.Context, *raw) (*runner.Outcome, error) {
					<-wait
					ran <- "a"
					return runner.Then(rawArgs("b")), nil
				},
				"b": func(context.Context, *raw) (*runner.Outcome, error) { ran <- "b"; return nil, nil },
			})
			var options []runner.EnqueueOption
			switch what {
			case "enqueue with a key":
				options = append(options, runner.IdempotencyKey("k"))
			case "enqueue with a unique key":
				options = append(options, runner.Unique("k", runner.WhileActive))
			}
			submit := func() (runner.Submitted, error) {
				return r.Enqueue(context.WithoutCancel(t.Context()), rawArgs("a"), options...)
			}
			var made runner.Submitted
			if what == "finish" {
				made.ID = enqueueStarted(t, r, rawArgs("a"))
			}
			lock, err := direct.Begin(t.Context())
			is.NoErr(err)
			defer lock.Rollback(context.WithoutCancel(t.Context()))
			_, err = lock.Exec(t.Context(), `lock table trapeze.job_events in access exclusive mode`)
			is.NoErr(err)
			waiting := func(n int) func() bool {
				return func() bool {
					return queryOne[int](t, direct, `select count(*) from pg_stat_activity where datname = current_database()
						and wait_event_type = 'Lock' and query ~ '^\s*(with (ends|input_jobs|gone|next|asked)|insert into trapeze.(submissions|unique_keys))'`) >= n
				}
			}
			submitted := make(chan error, 1)
			if what == "finish" {
				open()
			} else {
				go func() {
					var err error
					made, err = submit()
					submitted <- err
				}()
			}
			pgtest.Wait(t, "the statement waits for the lock", waiting(1))
			proxy.Reset()
			pgtest.Wait(t, "it has been sent again", waiting(2))
			is.NoErr(lock.Rollback(t.Context()))
			if what != "finish" {
				is.NoErr(<-submitted)
				open()
			}
			is.Equal(waitEnded(t, reader, made.ID).State, job.Succeeded)
			quiet(t, direct) // no job is left running on the pod
			close(ran)
			is.Equal(slices.Collect(func(yield func(string) bool) {
				for s := range ran {
					if !yield(s) {
						return
					}
				}
			}), []string{"a", "b"}) // each step ran once
			is.Equal(metricValue(t, r, "trapeze_stale_writes_rejected_total"), 0.0)
			checkHistory(t, direct, reader)
		})
	}
}
