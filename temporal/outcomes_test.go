package temporal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

func rawKind(kind string) runner.Raw { return runner.Raw{Name: kind} }

// quick retries almost immediately, up to three attempts in total.
var quick = runner.Retry(3, job.Backoff{Base: time.Millisecond, Cap: time.Millisecond})

func nothing(context.Context, *raw) (*runner.Outcome, error) { return nil, nil }

func TestTemporalPipelinesInPostgreSQL(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{
		"list": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawKind("part"), rawKind("part"), rawKind("part")).Join(rawKind("sum")).Result(100).OnFailure(rawKind("undo")), nil
		},
		"part": func(_ context.Context, j *raw) (*runner.Outcome, error) { return runner.Done(7), nil },
		"sum": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			total := 0
			if err := j.PreviousResult(ctx, &total); err != nil {
				return nil, err
			}
			for b, err := range j.Branches(ctx) {
				if err != nil {
					return nil, err
				}
				n := 0
				if err := b.Result(&n); err != nil {
					return nil, err
				}
				total += n
			}
			return runner.Then(runner.Raw{Name: "report", JSON: fmt.Appendf(nil, `{"total":%d}`, total)}), nil
		},
		"report": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return nil, job.Permanent(errors.New("no printer for " + string(j.Args.JSON)))
		},
		"undo": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			f, err := j.Failure(ctx)
			return runner.Done(f.Error), err
		},
	})
	w.start()
	w.enqueue("list", `{}`)
	var undone job.JobRow
	pgtest.Wait(t, "the failure step has run", func() bool {
		return w.pool.QueryRow(t.Context(), `select d.id from trapeze.done d join trapeze.jobs j on j.id = d.id where j.kind = 'undo'`).Scan(&undone.ID) == nil
	})
	undone = w.wait(undone.ID)
	is.Equal(undone.State, job.Succeeded)
	is.Equal(string(undone.Result), `"no printer for {\"total\":121}"`)
}

func TestTemporalRetrySnoozeCheckpoint(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var fences []int64
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"slow": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		fences = append(fences, j.Fence())
		step := 0
		if _, err := j.LastCheckpoint(&step); err != nil {
			return nil, err
		}
		if err := j.Checkpoint(ctx, step+1); err != nil {
			return nil, err
		}
		j.Progress(int64(step), 3)
		if err := j.Emit(ctx, "stepped", "info", fmt.Sprintf("step %d", step), nil); err != nil {
			return nil, err
		}
		switch {
		case step == 0:
			return nil, errors.New("not yet")
		case step == 1:
			return runner.Snooze(time.Millisecond, "later"), nil
		case j.Snoozes() != 1 || j.Attempt() != 2:
			return nil, job.Permanent(fmt.Errorf("attempt %d after %d snoozes", j.Attempt(), j.Snoozes()))
		}
		return runner.Done(step), nil
	}}, quick)
	w.start()
	id := w.enqueue("slow", `{}`)
	j := w.wait(id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), "2")
	is.True(fences[0] < fences[1] && fences[1] < fences[2]) // each run's fence is higher than the last
	events, err := w.Admin("").Events(t.Context(), id, 0, 100)
	is.NoErr(err)
	var steps []string
	for _, e := range events {
		if e.Event == "stepped" {
			is.True(e.Fields == nil)
			steps = append(steps, *e.Message)
		}
	}
	is.Equal(strings.Join(steps, ", "), "step 0, step 1, step 2")
}

func TestTemporalAttemptCounts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{
		"fails":  func(context.Context, *raw) (*runner.Outcome, error) { return nil, job.Code("no", errors.New("no")) },
		"panics": func(context.Context, *raw) (*runner.Outcome, error) { panic("oops") },
		"hangs": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}, quick, runner.Timeout(300*time.Millisecond))
	w.start()
	for kind, want := range map[string]job.End{
		"fails":  {Reason: job.ReasonAttemptsExhausted, ErrorClass: job.ClassError, ErrorCode: "no"},
		"panics": {Reason: job.ReasonAttemptsExhausted, ErrorClass: job.ClassPanic},
		"hangs":  {Reason: job.ReasonTimeout, ErrorClass: job.ClassTimeout},
	} {
		j := w.wait(w.enqueue(kind, `{}`))
		is.Equal(j.State, job.Failed)
		is.Equal(j.Attempt, 3)
		is.Equal(*j.Reason, want.Reason)
		is.Equal(*j.ErrorClass, want.ErrorClass)
		is.True(want.ErrorCode == "" || *j.ErrorCode == want.ErrorCode)
	}
}

func TestTemporalJobTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{
		"tx": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(pgx.Tx) error { return nil }, nil)
		},
		"outcome": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(1).InTx(func(context.Context, pgx.Tx) error { return nil }), nil
		},
		"write": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Done(1).Write("select 1"), nil },
	}, quick)
	runner.HandleRaw(w.Runner, "declared", nothing, runner.RequiresDatabase(), quick)
	w.start()
	for _, kind := range []string{"tx", "outcome", "write", "declared"} {
		j := w.wait(w.enqueue(kind, `{}`))
		is.Equal(j.State, job.Failed)
		is.Equal(j.Attempt, 1)                              // another attempt would not help
		is.True(strings.Contains(*j.Error, "idempotently")) // the error contains advice
	}
}

func TestTemporalOversizedPayloads(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	large := `"` + strings.Repeat("x", 900_000) + `"`
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{
		"args": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Snooze(0, "with a checkpoint"), j.Checkpoint(ctx, large)
		},
		"children": func(context.Context, *raw) (*runner.Outcome, error) {
			child := runner.Raw{Name: "args", JSON: []byte(large)}
			return runner.FanOut(child, child), nil
		},
		"events": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			for {
				if err := j.Emit(ctx, "e", "info", "", large); err != nil {
					return nil, err
				}
			}
		},
	}, quick)
	w.start()
	for _, id := range []int64{w.enqueue("args", large), w.enqueue("children", `{}`), w.enqueue("events", `{}`)} {
		j := w.wait(id)
		is.Equal(j.State, job.Failed)
		is.Equal(j.Attempt, 1)
		is.True(strings.Contains(*j.Error, "pass a reference")) // the error contains advice
	}
}

func TestTemporalDeferredJobCompletion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tokens := make(chan string, 1)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"asks": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		token, err := j.Token(ctx)
		tokens <- token
		return runner.Deferred(1).Result("asked"), err
	}})
	w.start()
	id := w.enqueue("asks", `{}`, runner.NeedsApproval())
	is.NoErr(w.Admin("bea").Approve(t.Context(), id))
	token := <-tokens
	pgtest.Wait(t, "the job waits", func() bool { return w.job(id).State == job.Waiting })
	is.NoErr(w.Complete(t.Context(), id, token, "yes"))
	is.Equal(w.wait(id).State, job.Succeeded)
}
