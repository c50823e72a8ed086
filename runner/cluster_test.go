package runner_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// After a failover, the table may contain claims that the pod does not know about, for example on a job that it had finished.
func TestReadBackAfterIdentityChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, enabled) values ('later', false)`)
	r := start(t, pool, named("a"), map[string]handler{"k": succeed})
	id := enqueue(t, r, rawArgs("k"), runner.Lane("later"))
	claimed, err := inside.Of(r).Store.Claim(t.Context(), r.PodID(), []store.Want{{Lane: "later", N: 1}}, []string{"k"}, nil, true)
	is.NoErr(err)
	is.Equal(len(claimed.Jobs), 1)
	pgtest.Wait(t, "the pod has agreed on a history", func() bool { return inside.Of(r).Store.History() != "" })
	exec(t, pool, `update trapeze.cluster set timeline = timeline - 1`) // simulates a standby's promotion
	pgtest.Wait(t, "the claim is handed back", func() bool {
		return queryOne[bool](t, pool, `select state = 'pending' from trapeze.live where id = $1`, id)
	})
	exec(t, pool, `update trapeze.lanes set enabled = true`)
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	pgtest.Wait(t, "the change is counted", func() bool { return metricValue(t, r, "trapeze_history_changes_total") == 1 })
	checkHistory(t, pool, r)
}
