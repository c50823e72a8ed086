package runner_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestAroundIsCalledInsteadOfEachHandlerAndHasItsWord(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	type key struct{}
	var mu sync.Mutex
	seen := map[string]string{}
	o := runner.Options{Around: func(ctx context.Context, j *runner.Job[runner.Raw], handle func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
		mu.Lock()
		seen[j.Kind()] = string(j.Args.JSON)
		mu.Unlock()
		if j.Kind() == "refused" {
			return nil, errors.New("not today")
		}
		return handle(context.WithValue(ctx, key{}, "from around"))
	}}
	r := start(t, pgtest.Pool(t), o, map[string]does{
		"done":    func(ctx context.Context, _ *raw) (*runner.Outcome, error) { return runner.Done(ctx.Value(key{})), nil },
		"refused": func(context.Context, *raw) (*runner.Outcome, error) { panic("called all the same") },
	})
	done, refused := enqueue(t, r, of("done", `{"n":1}`)), enqueue(t, r, of("refused"))
	is.Equal(string(inState(t, r, done, job.Succeeded).Result), `"from around"`) // its context is the handler's
	is.Equal(message(inState(t, r, refused, job.Failed)), "not today")           // its error is the job's
	mu.Lock()
	defer mu.Unlock()
	is.Equal(seen, map[string]string{"done": `{"n":1}`, "refused": "{}"}) // it sees every job, as it was submitted
}

func TestMaintenanceCanBeDoneNow(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := make1(t, pool, runner.Options{}, map[string]does{"a": nothing})
	late, old := enqueue(t, r, of("a"), runner.NeedsApproval()), enqueue(t, r, of("a"))
	exec(t, pool, `update trapeze.parked set run_after = now() - interval '25 hours'`)
	exec(t, pool, `update trapeze.live set ready_at = now() - interval '25 hours'`)
	is.NoErr(r.Maintain(t.Context()))
	is.Equal(why(get(t, r, late)), job.ReasonExpired) // nobody approved it
	is.Equal(why(get(t, r, old)), job.ReasonDeadline) // nobody ran it
	is.Equal(r.Kinds(), []string{"a"})
}
