package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// orchard runs random pipelines on two pods that share a database.
type orchard struct {
	pool  *pgxpool.Pool
	a, b  *runner.Runner
	roots map[int64]chainOutcome // predicted outcomes, by pipeline id

	mu     sync.Mutex
	starts map[string]int      // numbers of handler calls, by path
	sees   map[string][]string // branch outcomes that joins have read, by path
}

func newOrchard(pool *pgxpool.Pool) *orchard {
	return &orchard{pool: pool, roots: map[int64]chainOutcome{}, starts: map[string]int{}, sees: map[string][]string{}}
}

// inOrchards checks a property of random pipelines. Each check starts with empty tables and new pods.
func inOrchards(t *testing.T, property func(t *rapid.T, o *orchard, trees forest)) {
	pool := pgtest.Pool(t)
	began, failed, tries, jobs := time.Now(), false, 0, 0
	rapid.Check(t, func(try *rapid.T) {
		if !failed && time.Since(began) > patience {
			return // a slow machine performs fewer checks
		}
		trees := rapid.Custom(plantable).Draw(try, "trees")
		exec(try, pool, `delete from trapeze.jobs; delete from trapeze.done; delete from trapeze.fan_outs; delete from trapeze.pipelines;
			delete from trapeze.subjects; delete from trapeze.pods; delete from trapeze.job_events`)
		o := newOrchard(pool)
		var stop [2]func()
		for i, r := range []**runner.Runner{&o.a, &o.b} {
			*r = newRunner(t, pool, runner.Options{PodName: string(rune('a' + i)), Slots: rapid.IntRange(1, 8).Draw(try, "slots"),
				LeaseDuration: 20 * time.Second, PollInterval: time.Second}, nil)
			runner.Handle(*r, o.perform, runner.Retry(2, soon))
			stop[i] = run(t, *r)
			defer stop[i]()
		}
		ended := false
		defer func() { failed = failed || !ended }() // after a failure, rapid repeats the check in order to shrink the input
		property(try, o, trees)
		tries++
		jobs += queryOne[int](try, pool, `select count(*) from trapeze.jobs`)
		ended = true
	})
	t.Logf("%d attempts, %d jobs", tries, jobs)
}

// perform is the handler for all jobs. It behaves as the job's node describes.
func (o *orchard) perform(ctx context.Context, j *runner.Job[node]) (*runner.Outcome, error) {
	n := j.Args
	o.mu.Lock()
	o.starts[n.Path]++
	start := o.starts[n.Path]
	o.mu.Unlock()
	if n.AfterFan {
		list, err := observe(ctx, j)
		if err != nil {
			return nil, err
		}
		o.mu.Lock()
		o.sees[n.Path] = list
		o.mu.Unlock()
	}
	out := runner.Done(n.Path)
	switch {
	case n.Later && start == 1:
		return runner.Snooze(time.Millisecond, "not yet"), nil
	case n.Flaky && j.Attempt() == 1, n.End == "error":
		return nil, errors.New("bad")
	case n.End == "permanent":
		return nil, job.Permanent(errors.New("bad for good"))
	case n.End == "fan":
		var kids []job.Args
		for _, kid := range n.Kids {
			kids = append(kids, runner.With(chainOf(kid), runner.Delay(time.Duration(kid[0].DelayMS)*time.Millisecond)))
		}
		out = runner.FanOut(kids...).Result(n.Path)
		if n.FailFast {
			out.FailFast()
		}
		if len(n.Join) > 0 {
			out.Join(chainOf(n.Join))
		}
	case len(n.Then) > 0:
		out = runner.Then(chainOf(n.Then)).Result(n.Path)
	}
	if n.InTx {
		out.InTx(func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `select 1`); return err })
	}
	return out, nil
}

// observe returns the outcomes of the branches that a job joins.
func observe(ctx context.Context, j *runner.Job[node]) (list []string, err error) {
	for b, err := range j.Branches(ctx) {
		if err != nil {
			return nil, err
		}
		result := ""
		if b.State == job.Succeeded {
			if err := b.Result(&result); err != nil {
				return nil, err
			}
		}
		list = append(list, saw(b.No, b.State, b.Outcome, b.Reason, result))
	}
	return list, nil
}

// plant submits the trees and returns the model's predictions for them.
func (o *orchard) plant(t tester, trees forest) *model {
	m := newModel()
	for i, tree := range trees {
		var options []runner.EnqueueOption
		if i != 1 {
			options = append(options, runner.Pipeline(fmt.Sprint("tree ", i)))
		}
		made, err := []*runner.Runner{o.a, o.b}[i%2].Enqueue(t.Context(), chainOf(tree), options...)
		if err != nil {
			t.Fatalf("submit: %v", err)
		}
		o.roots[made.ID] = m.chain(tree)
	}
	return m
}

// greenTooEarlySQL finds an unfinished job that is not being cancelled, in a pipeline whose status says that it has finished.
const greenTooEarlySQL = `
select format('pipeline %s is %s, and its job %s %s', p.id, p.status, j.id, j.state)
from trapeze.pipeline p join trapeze.job j on j.pipeline_id = p.id
where p.status <> 'running' and j.state not in ('succeeded', 'failed', 'cancelled') and not j.cancel_requested and not exists (
	with recursive around(id) as (
		select j.group_id union select a.group_id from around join trapeze.jobs a on a.id = around.id
	) select from around join trapeze.fan_outs f on f.id = around.id where f.ended)
limit 1`

// rest waits until every job has finished, and meanwhile checks that no pipeline reports a final status too early.
func (o *orchard) rest(t tester) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		var list []string
		err := pgx.BeginTxFunc(t.Context(), o.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			rows, _ := tx.Query(t.Context(), greenTooEarlySQL)
			var err error
			list, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			t.Fatalf("reported too early: %s", list[0])
		}
		if queryOne[int](t, o.pool, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0 {
			return
		}
		if time.Now().After(deadline) {
			rows, _ := o.pool.Query(t.Context(), `select concat_ws(' ', j.id, j.args->>'path', j.state, j.reason, j.group_id, f) from trapeze.job j
				left join trapeze.fan_outs f on f.id = j.id where j.finished_at is null`)
			left, _ := pgx.CollectRows(rows, pgx.RowTo[string])
			t.Fatalf("these jobs do not end:\n%s", strings.Join(left, "\n"))
		}
	}
}

// sound checks the invariants that hold for any pipeline.
func (o *orchard) sound(t tester) {
	for claim, sql := range map[string]string{
		"every job has ended once": `select count(*) from trapeze.jobs j
			where (select count(*) from trapeze.done d where d.id = j.id and d.epoch = 1) <> 1`,
		"every fan-out is in balance": `select count(*) from trapeze.fan_outs where (open = 0) <> ended`,
		"no branch is open":           `select count(*) from trapeze.fan_outs where open <> 0`,
		"a job is followed by one step of its branch at most, and a waiting one by none but of a success": `
			select count(*) from (
				select p.id from trapeze.job p join trapeze.jobs n on n.parent_id = p.id and n.group_id is distinct from p.id
				group by p.id, p.state having count(*) > 1 or p.state <> 'succeeded') x`,
		"a pipeline has succeeded when all of its jobs have": `select count(*) from trapeze.pipeline p where (p.status = 'succeeded') <>
			(select bool_and(j.state = 'succeeded') from trapeze.job j where j.pipeline_id = p.id)`,
		"a partial one's spine has": `select count(*) from trapeze.pipeline p where p.status = 'partial' and exists (
			select from trapeze.job j where j.pipeline_id = p.id and j.group_id is null and j.state <> 'succeeded')`,
	} {
		if n := queryOne[int](t, o.pool, sql); n > 0 {
			t.Errorf("%s: not %d", claim, n)
		}
	}
	checkHistory(t, o.pool, o.a)
}

// row is a job's outcome.
type row struct {
	Path    string
	State   job.State
	Outcome job.OutcomeStatus
	Reason  job.Reason
	Error   string
}

// compare compares every job's outcome with the model.
func (o *orchard) compare(t tester, m *model) {
	rows, _ := o.pool.Query(t.Context(), `select args->>'path', state, outcome, reason, coalesce(error, '') from trapeze.job`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]row{}
	for _, r := range list {
		f, known := m.predictions[r.Path]
		if _, twice := found[r.Path]; twice || !known {
			t.Errorf("%s exists twice, or should not exist: %+v", r.Path, r)
		}
		found[r.Path] = r
		cut := f.doomed && r.State == job.Cancelled
		switch {
		case cut && r.Reason != job.ReasonCancelled, cut && o.starts[r.Path] > f.starts:
			t.Errorf("%s was cancelled: %+v, %d starts", r.Path, r, o.starts[r.Path])
		case cut:
		case r.State != f.state || r.Outcome != f.outcome || r.Reason != f.reason || f.message != "" && r.Error != f.message:
			t.Errorf("%s is %+v, want %+v", r.Path, r, f)
		case o.starts[r.Path] != f.starts:
			t.Errorf("%s started %d times, want %d", r.Path, o.starts[r.Path], f.starts)
		case !slices.Equal(o.sees[r.Path], f.sees):
			t.Errorf("%s saw %q, want %q", r.Path, o.sees[r.Path], f.sees)
		}
	}
	for path, f := range m.predictions {
		if _, ok := found[path]; !ok && !f.doomed {
			t.Errorf("%s was never created, want %+v", path, f)
		}
	}
	for path, bad := range m.fast {
		failed := func(path string) bool { return found[path].State == job.Failed }
		if failed(path) && !slices.ContainsFunc(bad, failed) {
			t.Errorf("%s failed fast, but none of %q failed", path, bad)
		}
	}
	for id, root := range o.roots {
		var is string
		err := o.pool.QueryRow(t.Context(), `select status from trapeze.pipeline where id = $1`, id).Scan(&is)
		lone := errors.Is(err, pgx.ErrNoRows) && queryOne[int](t, o.pool, `select count(*) from trapeze.jobs where pipeline_id = $1`, id) == 1
		if !lone && is != root.status() {
			t.Errorf("pipeline %d is %q, want %q", id, is, root.status())
		}
	}
}

// Random pipelines contain nested chains, fan-outs and joins, with failures, retries, delays and snoozes. Each job's outcome and number of
// runs, the branches that joins read, and the pipeline's status must all match an independent model.
func TestRandomPipelines(t *testing.T) {
	t.Parallel()
	inOrchards(t, func(try *rapid.T, o *orchard, trees forest) {
		m := o.plant(try, trees)
		o.rest(try)
		o.compare(try, m)
		o.sound(try)
	})
}
