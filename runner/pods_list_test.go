package runner_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestLivePodList(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	begin := time.Now()
	wait, _ := latch(t)
	holds := map[string]handler{"holds": waitOn(wait)}
	gone := newRunner(t, pgtest.Connect(t, url), runner.Options{PodName: "gone", Version: "v1.0.0"}, holds)
	stop := run(t, gone)
	podID := gone.PodID()
	stop()
	stays := start(t, pgtest.Connect(t, url), runner.Options{PodName: "stays", Version: "v1.2.3"}, holds)
	enqueueStarted(t, stays, rawArgs("holds"))
	beat := `select lease_until from trapeze.pods where id = '` + stays.PodID() + `'`
	first := queryOne[time.Time](t, inside.Of(stays).Store.Pool(), beat)
	pgtest.Wait(t, "a heartbeat renews the lease", func() bool { return queryOne[time.Time](t, inside.Of(stays).Store.Pool(), beat).After(first) })

	pods, err := view.Pods(t.Context(), inside.Of(stays).Store, false)
	is.NoErr(err)
	is.Equal(len(pods), 1) // the pod that has left is not listed
	is.Equal([]any{pods[0].PodID, pods[0].Name, pods[0].Version, pods[0].Running}, []any{stays.PodID(), "stays", "v1.2.3", 1})
	is.True(pods[0].StartedAt.After(begin.Add(-time.Minute)))
	all, err := view.Pods(t.Context(), inside.Of(stays).Store, true)
	is.NoErr(err)
	is.Equal(len(all), 2)
	is.Equal([]string{all[1].PodID, all[1].Version}, []string{podID, "v1.0.0"})
}

func TestStartedAtAcrossAttempts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var tries atomic.Int32
	next := make(chan struct{}, 3)
	r := start(t, pgtest.Pool(t), runner.Options{PollInterval: 200 * time.Millisecond}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		n := tries.Add(1)
		<-next
		if n < 3 {
			return nil, errors.New("not yet")
		}
		return nil, nil
	}}, runner.Retry(3, job.Backoff{Base: time.Millisecond, Cap: time.Millisecond}))
	t.Cleanup(func() { close(next) })
	id := enqueue(t, r, rawArgs("k"), runner.Delay(200*time.Millisecond)) // delayed, so that the job is started by a claim and not on insert
	var first time.Time
	for attempt := int32(1); attempt <= 3; attempt++ {
		pgtest.Wait(t, "the next attempt begins", func() bool { return tries.Load() == attempt })
		j := get(t, r, id)
		is.Equal(j.Attempt, int(attempt))
		if attempt == 1 {
			first = *j.StartedAt
		}
		is.Equal(*j.StartedAt, first) // StartedAt does not change while a later attempt is running
		is.True(j.FinishedAt == nil)
		next <- struct{}{}
	}
	j := inState(t, r, id, job.Succeeded)
	is.Equal(*j.StartedAt, first)
	is.True(j.FinishedAt.After(first))
}
