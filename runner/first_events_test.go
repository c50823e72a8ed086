package runner_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Events that many jobs emit concurrently share a commit. If PostgreSQL rejects one of the events, the others are still written.
func TestRejectedEventInSharedCommit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	const n = 200
	var begun, ended sync.WaitGroup
	begun.Add(n)
	ended.Add(n)
	var mu sync.Mutex
	refused := map[string]error{}
	o := named("a")
	o.Slots = n
	r := start(t, pool, o, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		begun.Done()
		begun.Wait()
		if err := j.Emit(ctx, "my.event", "", "hello "+string(j.Args.JSON), nil); err != nil {
			mu.Lock()
			refused[string(j.Args.JSON)] = err
			mu.Unlock()
		}
		ended.Done()
		return nil, nil
	}})
	exec(t, pool, `alter table trapeze.job_events add constraint none_of_7 check (message <> 'hello 7')`)
	list := make([]job.Args, n)
	for i := range list {
		list[i] = rawArgs("k", fmt.Sprint(i))
	}
	ids, err := r.EnqueueMany(t.Context(), list)
	is.NoErr(err)
	ended.Wait()
	quiet(t, pool)
	for _, id := range ids[:3] {
		is.Equal(eventsOf(t, r, id), []string{"job.enqueued", "job.claimed", "my.event", "job.succeeded"})
	}
	is.Equal(len(refused), 1)
	is.True(strings.Contains(refused["7"].Error(), "none_of_7")) // only the handler that emitted this event sees the error
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events where event = 'my.event'`), n-1)
	exec(t, pool, `alter table trapeze.job_events drop constraint none_of_7`)

	begun.Add(n)
	ended.Add(n)
	_, err = r.EnqueueMany(t.Context(), list)
	is.NoErr(err)
	ended.Wait()
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.job_events where event = 'my.event'`), 2*n-1)
	transactions := queryOne[int](t, pool, `select count(distinct xid::text) from trapeze.job_events where event = 'my.event'`)
	is.True(transactions <= n+n/4) // some events of the first batch were written individually; those of the second batch share commits
	checkHistory(t, pool, r)
}
