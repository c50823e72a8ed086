//go:build long

package host_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The pod runs its own jobs and serves a remote worker, while many clients submit jobs, list jobs and follow the feed.
func TestBusyPodConnectionLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	is.Equal(runner.PodConnections, 6)
	url := pgtest.URL(t)
	admin := pgtest.Connect(t, url)
	r := podtest.Start(t, pgtest.Connect(t, url), runner.Options{Slots: 20, LeaseDuration: time.Minute}, noKinds)
	w := newFar()
	w.connect(t, r, 5, "far")
	w.keepBeating(t, r)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var busy sync.WaitGroup
	again := func(do func()) {
		for range 10 {
			busy.Go(func() {
				for ctx.Err() == nil {
					do()
				}
			})
		}
	}
	var mu sync.Mutex
	var took []time.Duration // how long each submission took
	again(func() {
		began := time.Now()
		if _, err := r.Enqueue(ctx, podtest.RawArgs("local")); err == nil {
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
		}
	})
	again(func() { _, _ = view.Jobs(ctx, inside.Of(r).Slow, job.Filter{}) })
	again(func() {
		stream, err := inside.Of(r).Feed.All(ctx, "", "0") // from the first event
		if err != nil {
			return
		}
		defer stream.Close()
		for range 5 {
			_, _ = stream.Next(ctx, 10*time.Millisecond)
		}
	})
	most := 0
	for began := time.Now(); time.Since(began) < 4*time.Second; {
		id := foreign(t, r, podtest.RawArgs("far"))
		a := w.takes(t, r)
		_, err := w.reports(t, r, a, runner.Done(1), nil)
		is.NoErr(err)
		is.Equal(podtest.WaitEnded(t, r, id).State, job.Succeeded)
		open := pgtest.QueryOne[int](t, admin, `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'trapeze%'`)
		most = max(most, open)
	}
	stop()
	busy.Wait()
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(took)
	t.Logf("at most %d connections; %d submissions, the slowest took %s", most, len(took), took[len(took)-1])
	is.True(most <= runner.PodConnections)
	is.True(took[len(took)-1] < 5*time.Second)
}
