package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Two jobs whose rows somebody has locked hold up the ends of nobody else.
func TestLockedJobsHoldUpNoOtherJobsEnd(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	wait, open := gate(t)
	r := start(t, pool, runner.Options{Slots: 8}, map[string]does{"locked": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}, "free": nothing})
	a, b := enqueue(t, r, of("locked")), enqueue(t, r, of("locked"))
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
	time.Sleep(500 * time.Millisecond)
	id := enqueue(t, r, of("free"))
	pgtest.WaitFor(t, 5*time.Second, "the free job has ended", func() bool { return get(t, r, id).State == job.Succeeded })
}
