package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// accepted is a submission of TestReplaceRacingSubmissions that was not rolled back. Its moments are counted by one counter.
type accepted struct {
	no           int64
	began, ended int64
	made         runner.Submitted
}

// Eight goroutines submit to three keys over two runners, which run the jobs meanwhile, and with SQL. Each accepted submission must be represented: by a run that
// began after the submission, with args that are at least as new.
func TestReplaceRacingSubmissions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	const every = 20 * time.Millisecond
	var clock atomic.Int64
	type running struct{ at, no int64 }
	var mu sync.Mutex
	runs := map[int64]running{} // by job
	kinds := map[string]handler{"a": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		at := clock.Add(1)
		var no int64
		err := json.Unmarshal(j.Args.JSON, &no)
		mu.Lock()
		defer mu.Unlock()
		runs[j.ID()] = running{at, no}
		return nil, err
	}}
	pods := []*runner.Runner{
		start(t, pool, runner.Options{PodName: "one", PollInterval: 100 * time.Millisecond}, kinds),
		start(t, pool, runner.Options{PodName: "two", PollInterval: 100 * time.Millisecond}, kinds),
	}
	options := map[string]runner.EnqueueOption{
		"replace":  runner.Unique("replace", runner.WhilePending).Replace(),
		"debounce": runner.Unique("debounce", runner.WhilePending).Debounce(5*time.Millisecond, 20*time.Millisecond),
		"throttle": runner.Unique("throttle", runner.WhilePending).Throttle(every),
	}
	keys := []string{"replace", "debounce", "throttle"}
	by := runner.Submitter("ann")
	all := map[string][]*accepted{}
	no := errors.New("no")
	var submitters sync.WaitGroup
	for worker := range 8 {
		submitters.Go(func() {
			r := pods[worker%2]
			for range racingJobs {
				key := keys[rand.IntN(len(keys))]
				a := &accepted{began: clock.Add(1)}
				a.no = a.began
				args := rawArgs("a", fmt.Sprint(a.no))
				var err error
				rolledBack := false
				switch rand.IntN(5) {
				case 0:
					a.made, err = runner.EnqueueSQL(t.Context(), db, args, options[key], by)
				case 1:
					rolledBack = rand.IntN(2) == 0
					err = r.Tx(t.Context(), func(tx pgx.Tx) (err error) {
						if a.made, err = r.EnqueueTx(t.Context(), tx, args, options[key], by); err == nil && rolledBack {
							err = no
						}
						return err
					})
				default:
					a.made, err = r.Enqueue(t.Context(), args, options[key], by)
				}
				if rolledBack && errors.Is(err, no) {
					continue
				}
				if err != nil {
					t.Errorf("submit to %s: %v", key, err)
					return
				}
				a.ended = clock.Add(1)
				mu.Lock()
				all[key] = append(all[key], a)
				mu.Unlock()
			}
		})
	}
	submitters.Wait()
	pgtest.WaitFor(t, time.Minute, "all jobs have ended", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.jobs j where not exists (select from trapeze.done d where d.id = j.id)`) == 0
	})
	mu.Lock()
	defer mu.Unlock()
	replaced, created := 0, 0
	for key, list := range all {
		byNo := map[int64]*accepted{}
		for _, a := range list {
			byNo[a.no] = a
		}
		for _, a := range list {
			run, ran := runs[a.made.ID]
			switch with := byNo[run.no]; {
			case !ran:
				t.Errorf("%s: submission %d: job %d did not run", key, a.no, a.made.ID)
			case run.at < a.began:
				t.Errorf("%s: submission %d: the run of job %d began before", key, a.no, a.made.ID)
			case with == nil:
				t.Errorf("%s: job %d ran with args %d, which were not accepted", key, a.made.ID, run.no)
			case with.ended < a.began:
				t.Errorf("%s: submission %d: job %d ran with older args %d", key, a.no, a.made.ID, run.no)
			case a.made.Duplicate != a.made.Replaced:
				t.Errorf("%s: submission %d was merged: %+v", key, a.no, a.made)
			}
			if a.made.Replaced {
				replaced++
			} else {
				created++
			}
		}
	}
	t.Logf("%d created, %d replaced", created, replaced)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), created)
	is.Equal(queryOne[int](t, pool, `select coalesce(sum(replaced), 0)::int from trapeze.jobs`), replaced)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.unique_keys`), 0)
	is.Equal(queryOne[int](t, pool, `select count(*) from (select d.started_at - lag(d.started_at) over (order by d.started_at) as gap
		from trapeze.jobs j join trapeze.done d on d.id = j.id where j.unique_key = 'throttle') g where gap < $1::interval`, every), 0) // at most one start per interval
}
