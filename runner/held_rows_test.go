package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// If the rows of two jobs are locked, other jobs can still finish.
func TestFinishBesideLockedJobRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{Slots: 8}, map[string]handler{"locked": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}, "free": succeed})
	a, b := enqueue(t, r, rawArgs("locked")), enqueue(t, r, rawArgs("locked"))
	inState(t, r, a, job.Running)
	inState(t, r, b, job.Running)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `select from trapeze.live for update`); err != nil {
		t.Fatal(err)
	}
	open()
	time.Sleep(500 * time.Millisecond) // time for the pod to skip the locked rows, because that cannot be observed
	id := enqueue(t, r, rawArgs("free"))
	pgtest.Wait(t, "the free job has ended", func() bool { return get(t, r, id).State == job.Succeeded })
}

// If a job cannot finish because its next step's subject is locked, other jobs can still finish.
func TestFinishBesideLockedSubject(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{Slots: 8}, map[string]handler{"parent": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Then(rawArgs("step"), runner.Subject("taken")), nil
	}, "step": succeed, "free": succeed})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `insert into trapeze.subjects (kind, subject, job_id, state) values ('step', 'taken', 0, 'held')`); err != nil {
		t.Fatal(err)
	}
	parent := enqueue(t, r, rawArgs("parent"))
	pgtest.Wait(t, "its finish is waiting", func() bool {
		return queryOne[int](t, pool, `select count(*)::int from pg_stat_activity where datname = current_database() and wait_event = 'transactionid'`) > 0
	})
	for range 3 {
		id := enqueue(t, r, rawArgs("free"))
		pgtest.Wait(t, "the free job has ended", func() bool { return get(t, r, id).State == job.Succeeded })
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitEnded(t, r, parent)
	quiet(t, pool)
}
