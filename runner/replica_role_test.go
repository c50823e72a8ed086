package runner_test

import (
	"context"
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Bulk loads and migration services set session_replication_role for a database or role, and may leave it there.
func TestFailureJobsInReplicaRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.WithParameter(pgtest.URL(t), "session_replication_role=replica")
	pool := pgtest.Connect(t, url)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"nothing": succeed,
		"fails":   func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("broken") },
	})
	id := enqueue(t, r, rawArgs("fails"), runner.OnFailure(rawArgs("nothing", `{}`)))
	waitEnded(t, r, id)
	is.Equal(followers(t, pool, id), []string{"nothing{}"})
	quiet(t, pool)
	exec(t, pool, `insert into trapeze.audit (actor, action, target) values ('ann', 'job.cancel', 'job 7')`)
	_, err := pool.Exec(t.Context(), `delete from trapeze.audit`)
	is.True(err != nil) // the audit is only added to
}
