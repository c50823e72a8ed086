package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// refuses makes the database reject every write to live or parked that would make a job wait again. The error reports a missing privilege,
// which neither a new connection nor different values would fix. mend removes the trigger.
func refuses(t *testing.T, pool *pgxpool.Pool, table string) (mend func()) {
	t.Helper()
	exec(t, pool, `create or replace function public.refuse() returns trigger language plpgsql as $$
		begin raise exception 'no' using errcode = '42501'; end $$`)
	event := "insert"
	when := ""
	if table == "live" {
		event, when = "update", "when (old.state = 'running' and new.state = 'pending')"
	}
	exec(t, pool, `create trigger refuse before `+event+` on trapeze.`+table+` for each row `+when+` execute function public.refuse()`)
	return func() { exec(t, pool, `drop trigger if exists refuse on trapeze.`+table) }
}

// A retry that cannot be written immediately must be written later.
func TestRetryDuringRevokedRight(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	mend := refuses(t, pool, "parked")
	r := start(t, pool, short, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Attempt() == 1 {
			return nil, runner.RetryAfter(time.Millisecond, errors.New("once"))
		}
		return nil, nil
	}})
	id := enqueue(t, r, rawArgs("k"))
	time.Sleep(time.Second)
	mend()
	pgtest.Wait(t, "the job has ended", func() bool { return get(t, r, id).State.Terminal() })
	if j := get(t, r, id); j.State != job.Succeeded {
		t.Fatalf("%s: %s, with attempts left", j.State, message(j))
	}
}

// A claim that cannot be handed back immediately must be handed back later, because no other pod recovers a living pod's jobs.
func TestHandBackDuringRevokedRight(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	mend := refuses(t, pool, "live")
	began := make(chan struct{}, 10)
	calls := 0
	o := short
	r := start(t, pool, o, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		calls++
		began <- struct{}{}
		if calls == 1 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	}})
	pgtest.Wait(t, "ready", func() bool { ok, _ := r.Ready(); return ok })
	id := enqueue(t, r, rawArgs("k"))
	<-began
	// Block the heartbeat until the pod no longer trusts its lease. There is no other pod to recover the job.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from trapeze.pods for update`); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the handler has returned", func() bool { return r.Running() == 0 || get(t, r, id).State != job.Running || notReady(r) })
	time.Sleep(500 * time.Millisecond)
	_ = tx.Rollback(t.Context())
	mend()
	pgtest.WaitFor(t, 8*time.Second, "the job has ended", func() bool { return get(t, r, id).State == job.Succeeded })
}

func notReady(r *runner.Runner) bool { ok, _ := r.Ready(); return !ok }
