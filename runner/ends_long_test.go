//go:build long

package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEndCountByCause(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	die, dies := latch(t)
	handlers := map[string]handler{
		"fine":   succeed,
		"fails":  func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") },
		"panics": func(context.Context, *raw) (*runner.Outcome, error) { panic("no") },
		"runs": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-ctx.Done():
			case <-die:
			}
			return nil, errors.New("late")
		},
		"shrugs": func(ctx context.Context, _ *raw) (*runner.Outcome, error) { <-ctx.Done(); return nil, nil },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("fails"), runner.With(rawArgs("later"), runner.AllowUnregistered())).FailFast(), nil
		},
		"chains": func(context.Context, *raw) (*runner.Outcome, error) { return runner.Then(rawArgs("fine")), nil },
	}
	var told ends
	o := runner.Options{ApprovalTTL: 50 * time.Millisecond, LeaseDuration: time.Second, OnEnd: told.add}
	a, b := newRunner(t, pool, o, handlers, runner.MaxCrashes(1)), newRunner(t, pool, o, handlers, runner.MaxCrashes(1))
	exec(t, pool, `insert into trapeze.lanes (name, max_age_s) values ('brief', 1)`)
	submit := func(kind string, options ...runner.EnqueueOption) int64 {
		return enqueue(t, a, rawArgs(kind), append(options, runner.AllowUnregistered())...)
	}

	submit("expires", runner.NeedsApproval()) // expires in the first maintenance run, on either pod
	overdue := submit("overdue", runner.Lane("brief"))
	exec(t, pool, `update trapeze.live set ready_at = now() - interval '1 hour' where id = $1`, overdue)
	time.Sleep(60 * time.Millisecond) // waits until ApprovalTTL has passed on the database's clock
	run(t, a)
	run(t, b)
	quiet(t, pool)

	for _, kind := range []string{"fine", "fails", "panics", "chains"} {
		submit(kind)
	}
	_, err := b.Admin("me").Cancel(t.Context(), submit("cancelled", runner.Delay(time.Hour)))
	is.NoErr(err)
	_, err = a.Admin("me").Cancel(t.Context(), submit("cancelled")) // the job is due, but not running on any pod
	is.NoErr(err)
	for range 3 {
		submit("crowd", runner.Delay(time.Hour))
	}
	_, err = b.Admin("me").CancelMany(t.Context(), runner.Filter{Kind: "crowd"}, false)
	is.NoErr(err)
	for _, end := range []func(*runner.Runner, int64) error{
		func(r *runner.Runner, id int64) error { _, err := r.Admin("me").Cancel(t.Context(), id); return err },
		func(r *runner.Runner, id int64) error {
			_, err := r.Admin("me").ForceCancel(t.Context(), id)
			return err
		},
	} {
		for _, r := range []*runner.Runner{a, b} { // one of the two pods runs the job
			id := submit("runs")
			inState(t, a, id, job.Running)
			is.NoErr(end(r, id))
		}
	}
	id := submit("shrugs") // its handler succeeds after the cancellation was committed, so the job ends as cancelled
	inState(t, a, id, job.Running)
	_, err = a.Admin("me").Cancel(t.Context(), id)
	is.NoErr(err)
	id = submit("runs") // this job's pod dies
	inState(t, a, id, job.Running)
	exec(t, pool, `insert into trapeze.pods (id, name, lease_until, closed_at, closed) values (gen_random_uuid(), 'dead', now(), now(), 'lapsed')`)
	exec(t, pool, `update trapeze.live set pod = (select id from trapeze.pods where name = 'dead') where id = $1`, id)
	is.Equal(*waitEnded(t, a, id).ErrorClass, job.ClassCrashLimit)
	chain := enqueue(t, a, runner.Chain(rawArgs("fine"), rawArgs("fine")), runner.Delay(time.Hour))
	_, err = a.Admin("me").CancelPipeline(t.Context(), chain)
	is.NoErr(err)
	submit("fans") // "later" has no handler here; it is cancelled when its sibling fails
	pgtest.Wait(t, "every job has ended", func() bool {
		return queryOne[int](t, pool, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0
	})

	dies() // lets the dead pod's handler return; its result is ignored
	counted := allCounted(t, pool, a, b)
	for end, n := range map[endOf]int{
		{"", "expires", "cancelled"}: 1, {"deadline", "overdue", "failed"}: 1, {"", "cancelled", "cancelled"}: 2, {"", "crowd", "cancelled"}: 3,
		{"", "runs", "cancelled"}: 4, {"", "shrugs", "cancelled"}: 1, {"crash_limit", "runs", "failed"}: 1, {"children_failed", "fans", "failed"}: 1, {"", "later", "cancelled"}: 1,
		{"panic", "panics", "failed"}: 1, {"error", "fails", "failed"}: 2,
	} {
		if counted[end] != n {
			t.Errorf("%v: %d, want %d", end, counted[end], n)
		}
	}
	told.check(t, pool)
}
