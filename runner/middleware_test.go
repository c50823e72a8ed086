package runner_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestHandlerMiddlewareOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	type key struct{}
	var mu sync.Mutex
	seen := map[string]string{}
	outer := func(ctx context.Context, j *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
		mu.Lock()
		seen[j.Kind()] = string(j.Args.JSON)
		mu.Unlock()
		if j.Kind() == "refused" {
			return nil, errors.New("not today")
		}
		return next(context.WithValue(ctx, key{}, "from outside"))
	}
	inner := func(ctx context.Context, _ *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
		return next(context.WithValue(ctx, key{}, ctx.Value(key{}).(string)+" and inside"))
	}
	pool := pgtest.Pool(t)
	exec(t, pool, `create table notes (note text)`)
	always := runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into notes values ($1)`, ctx.Value(key{}))
		return err
	})
	r := start(t, pool, runner.Options{Middleware: []runner.Middleware{outer, inner}}, map[string]handler{
		"done":    func(ctx context.Context, _ *raw) (*runner.Outcome, error) { return runner.Done(ctx.Value(key{})), nil },
		"writes":  func(context.Context, *raw) (*runner.Outcome, error) { return always, nil },
		"refused": func(context.Context, *raw) (*runner.Outcome, error) { panic("called all the same") },
	})
	done, refused := enqueue(t, r, rawArgs("done", `{"n":1}`)), enqueue(t, r, rawArgs("refused"))
	is.Equal(string(inState(t, r, done, job.Succeeded).Result), `"from outside and inside"`) // the handler sees the context passed on by the middleware
	is.Equal(message(inState(t, r, refused, job.Failed)), "not today")                       // the job fails with the middleware's error
	for range 2 {
		inState(t, r, enqueue(t, r, rawArgs("writes")), job.Succeeded)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from notes where note = 'from outside and inside'`), 2) // InTx functions see the middleware's context too
	mu.Lock()
	defer mu.Unlock()
	is.Equal(seen, map[string]string{"done": `{"n":1}`, "refused": "{}", "writes": "{}"}) // the middleware sees every job as submitted
}

func TestMaintenanceCanBeDoneNow(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{MaxAge: 24 * time.Hour, ApprovalTTL: 24 * time.Hour}, map[string]handler{"a": succeed})
	late, old := enqueue(t, r, rawArgs("a"), runner.NeedsApproval()), enqueue(t, r, rawArgs("a"))
	exec(t, pool, `update trapeze.parked set run_after = now() - interval '25 hours'`)
	exec(t, pool, `update trapeze.live set ready_at = now() - interval '25 hours'`)
	is.NoErr(r.Maintain(t.Context()))
	is.Equal(reasonOf(get(t, r, late)), job.ReasonExpired) // the job was never approved
	is.Equal(reasonOf(get(t, r, old)), job.ReasonDeadline) // no pod ran the job in time
	is.Equal(r.Kinds(), []string{"a"})
}
