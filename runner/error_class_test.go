package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// declined is an error that provides its own code.
type declined struct{}

func (declined) Error() string { return "the card was declined" }
func (declined) Code() string  { return "card_declined" }

// broken is an error whose code cannot be read.
type broken struct{ code string }

func (*broken) Error() string  { return "broken" }
func (b *broken) Code() string { return b.code }

// failure is a handler together with the class and code of the errors that it causes.
type failure struct {
	class, code string
	handler     handler
}

func failures(pool *pgxpool.Pool) map[string]failure {
	fails := func(err error) handler {
		return func(context.Context, *raw) (*runner.Outcome, error) { return nil, err }
	}
	twice := func(ctx context.Context, tx interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}) error {
		var id int
		return tx.QueryRow(ctx, `insert into rows values (1), (1) returning id`).Scan(&id)
	}
	inTx := func(write func(context.Context, pgx.Tx) error) handler {
		return func(context.Context, *raw) (*runner.Outcome, error) { return runner.Done(nil).InTx(write), nil }
	}
	long := strings.Repeat("x", 100)
	return map[string]failure{
		"plain":    {"error", "", fails(errors.New("no"))},
		"coded":    {"error", "quota", fails(job.Permanent(fmt.Errorf("charge: %w", job.Code("quota", errors.New("no")))))},
		"method":   {"error", "card_declined", fails(fmt.Errorf("charge: %w", declined{}))},
		"outer":    {"error", "outer", fails(job.Code("outer", declined{}))},
		"odd":      {"error", "bad_code_", fails(job.Code("bad code\n", errors.New("no")))},
		"long":     {"error", long[:64], fails(job.Code(long, errors.New("no")))},
		"panic":    {"panic", "", func(context.Context, *raw) (*runner.Outcome, error) { panic("no") }},
		"goexit":   {"panic", "", func(context.Context, *raw) (*runner.Outcome, error) { runtime.Goexit(); return nil, nil }},
		"nil_code": {"panic", "", fails((*broken)(nil))},
		"nil_tx":   {"panic", "", inTx(func(context.Context, pgx.Tx) error { return (*broken)(nil) })},
		"no_code":  {"error", "inner", fails(job.Code("", job.Code("inner", errors.New("no"))))},
		"panic_tx": {"panic", "", inTx(func(context.Context, pgx.Tx) error { panic("no") })},
		"sql": {"database", "23505", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			return nil, fmt.Errorf("insert: %w", twice(ctx, pool))
		}},
		"sql_tx": {"database", "23505", inTx(func(ctx context.Context, tx pgx.Tx) error { return twice(ctx, tx) })},
		"sql_coded": {"error", "order_exists", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			return nil, job.Code("order_exists", twice(ctx, pool))
		}},
		"timeout": {"timeout", "", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return nil, errors.Join(ctx.Err(), twice(context.WithoutCancel(ctx), pool)) // the job fails because of the timeout, not the database error
		}},
		"timeout_coded": {"timeout", "late", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return nil, job.Code("late", ctx.Err())
		}},
		"args": {"invalid_args", "", fails(fmt.Errorf("%w: no", job.ErrInvalidArgs))},
		"refused": {"unstorable", "", func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("taken", `{"once":"x"}`)), nil // an index created by the test rejects this step
		}},
		"large": {"unstorable", "", func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(strings.Repeat("x", 2<<20)), nil
		}},
		"fan_out": {"children_failed", "", func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("plain"), rawArgs("panic")), nil
		}},
	}
}

func TestFailedJobErrorCode(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (id int primary key)`)
	exec(t, pool, `create unique index on trapeze.jobs ((args ->> 'once')) where kind = 'taken'`)
	handlers, all := map[string]handler{"taken": succeed}, failures(pool)
	for kind, f := range all {
		handlers[kind] = f.handler
	}
	r := start(t, pool, runner.Options{}, handlers, runner.Timeout(3*time.Second))
	enqueue(t, r, rawArgs("taken", `{"once":"x"}`))
	for kind, f := range all {
		t.Run(kind, func(t *testing.T) {
			is := is.New(t)
			id := enqueue(t, r, rawArgs(kind))
			_, err := runner.Result[any](t.Context(), r, id)
			class, code := f.class, f.code
			end, ok := errors.AsType[*job.EndError](err)
			is.True(ok)
			is.Equal(string(end.Class), class) // returned to waiters
			is.Equal(end.Code, code)
			j := get(t, r, id)
			is.Equal(j.State, job.Failed)
			is.Equal(string(*j.ErrorClass), class) // stored in the job's row
			is.Equal(deref(j.ErrorCode), code)
			var fields struct {
				Reason string `json:"reason"`
				Class  string `json:"error_class"`
				Code   string `json:"error_code"`
			}
			e := lastEvent(t, r, id)
			is.Equal(e.Event, "job.failed")
			is.NoErr(json.Unmarshal(e.Fields, &fields))
			is.Equal(fields.Reason, string(reasonOf(j))) // recorded in the history
			is.Equal(fields.Class, class)
			is.Equal(fields.Code, code)
			pgtest.Wait(t, "it is counted", func() bool { return finished(t, r)[endOf{class, kind, "failed"}] >= 1 })
			page, err := view.Jobs(t.Context(), inside.Of(r).Store, runner.Filter{Kind: kind, ErrorClass: job.ErrorClass(class), ErrorCode: code})
			is.NoErr(err)
			is.True(len(page.Jobs) >= 1 && page.Jobs[0].ID == id) // lists can be filtered by class and code
		})
	}
}

func TestFailedAttemptErrorClass(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Attempt() == 1 {
			return nil, job.Code("busy", errors.New("try again"))
		}
		return nil, nil
	}}, runner.Retry(2, soon))
	id := enqueue(t, r, rawArgs("k"))
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded)
	is.True(j.ErrorClass == nil && j.ErrorCode == nil) // a job that succeeded has neither
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 100)
	is.NoErr(err)
	var fields map[string]any
	for _, e := range list {
		if e.Event == "job.retried" {
			is.NoErr(json.Unmarshal(e.Fields, &fields))
		}
	}
	is.Equal(fields["error_class"], "error")
	is.Equal(fields["error_code"], "busy")
}

func TestFailureLogLine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	log, said := debugging()
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{Logger: log}, map[string]handler{
		"fails": func(context.Context, *raw) (*runner.Outcome, error) {
			return nil, job.Code("quota", errors.New("out of cheese"))
		},
		"panics": func(context.Context, *raw) (*runner.Outcome, error) { panic("out of wine") },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("fails")), nil
		},
	})
	line := func(kind string) (found string) {
		enqueue(t, r, rawArgs(kind))
		pgtest.Wait(t, "the end of "+kind+" is logged", func() bool {
			for l := range strings.SplitSeq(said.String(), "\n") {
				if strings.Contains(l, `msg="job failed"`) && strings.Contains(l, "kind="+kind) {
					found = l
				}
			}
			return found != ""
		})
		return found
	}
	fails := line("fails")
	is.True(strings.Contains(fails, `err="out of cheese"`))
	is.True(strings.Contains(fails, "error_class=error error_code=quota"))
	panics := line("panics")
	is.True(strings.Contains(panics, "panic: out of wine"))
	is.True(strings.Contains(panics, "error_class_test.go")) // the stack trace contains the source line
	is.True(strings.Contains(panics, "error_class=panic"))
	is.True(strings.Contains(line("fans"), `err="1 of 1 children failed"`)) // logged even though no handler returned this error
}

func lastEvent(t *testing.T, r *runner.Runner, id int64) job.Event {
	t.Helper()
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 1000)
	if err != nil || len(list) == 0 {
		t.Fatalf("%d events: %v", len(list), err)
	}
	return list[len(list)-1]
}
