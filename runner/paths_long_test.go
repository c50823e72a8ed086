//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Starting on insert and polling must give the same results. A more urgent waiting job that no pod here can run disables starting on
// insert. A poll interval of one hour effectively disables polling.
func TestPollVersusFastPathTrees(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var trees forest
	for i := range 8 {
		trees = append(trees, rapid.Custom(plantable).Example(i)...)
	}
	trees = append(trees, []*node{{End: "fan", Kids: [][]*node{{{End: "ok"}, {End: "ok"}}, {{End: "fan", Kids: [][]*node{{{End: "ok"}}}}}}, Join: []*node{{End: "ok"}}}, {End: "ok"}})
	for i, tree := range trees {
		name(tree, string(rune('A'+i)), false)
		calm(tree)
	}
	var came [2][]row
	for i, every := range []time.Duration{100 * time.Millisecond, time.Hour} {
		pool := pgtest.Pool(t)
		o := newOrchard(pool)
		for n, r := range []**runner.Runner{&o.a, &o.b} {
			*r = newRunner(t, pool, runner.Options{PodName: string(rune('a' + n)), Slots: 4, LeaseDuration: 20 * time.Second, PollInterval: every}, nil)
			runner.Handle(*r, o.perform, runner.Retry(2, soon))
			run(t, *r)
		}
		polls := i == 0
		if polls {
			enqueue(t, o.a, rawArgs("elsewhere", `{"path":"elsewhere"}`), runner.AllowUnregistered(), runner.Priority(100))
		}
		m := o.plant(t, trees)
		pgtest.Wait(t, "all jobs that can end have ended", func() bool {
			return queryOne[bool](t, pool, `select count(*) = $1 from trapeze.done`, len(m.predictions))
		})
		is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_event where event = 'job.claimed' and fields->>'path' = 'fast'`) > 0, !polls)
		rows, err := pool.Query(t.Context(), `select args->>'path', state, outcome, reason, coalesce(error, '') from trapeze.job
			where kind = 'node' order by 1`)
		is.NoErr(err)
		came[i], err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		is.NoErr(err)
		for _, r := range came[i] {
			f := m.predictions[r.Path]
			is.Equal(r.State, f.state)
			is.Equal(o.starts[r.Path], f.starts) // the handler was called the expected number of times
			is.Equal(o.sees[r.Path], f.sees)
		}
		checkHistory(t, pool, o.a)
	}
	is.Equal(came[0], came[1]) // all rows are the same
}

// calm clears FailFast in every node of a tree, because the siblings that are still running when a branch fails are unpredictable.
func calm(list []*node) {
	for _, n := range list {
		n.FailFast = false
		calm(n.Then)
		calm(n.Join)
		for _, kid := range n.Kids {
			calm(kid)
		}
	}
}
