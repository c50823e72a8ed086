package runner

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func reviewRunner(t *testing.T, kinds map[string]Func[Raw], options ...HandleOption) *Runner {
	t.Helper()
	return reviewRunnerTelling(t, nil, kinds, options...)
}

func reviewRunnerTelling(t *testing.T, onEnd func(context.Context, job.End), kinds map[string]Func[Raw], options ...HandleOption) *Runner {
	t.Helper()
	r, err := New(pgtest.Pool(t), Options{HeartbeatInterval: 200 * time.Millisecond, LeaseDuration: 6 * time.Second,
		ShutdownGrace: time.Second, StuckAfter: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), OnEnd: onEnd})
	if err != nil {
		t.Fatal(err)
	}
	for kind, do := range kinds {
		HandleRaw(r, kind, do, options...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped; r.Close() })
	pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := r.Ready(); return ready })
	return r
}

// The reply to a claim is lost, and an operator cancels the job before the pod has searched for orphaned claims.
func TestOrphanedClaimCancelled(t *testing.T) {
	t.Parallel()
	told := make(chan job.End, 2)
	r := reviewRunnerTelling(t, func(_ context.Context, e job.End) { told <- e },
		map[string]Func[Raw]{"k": func(context.Context, *Job[Raw]) (*Outcome, error) { return nil, nil }})
	made, err := r.Enqueue(t.Context(), Raw{Name: "stray"}, AllowUnregistered(), Subject("s"))
	if err != nil {
		t.Fatal(err)
	}
	found, err := r.pod.Store.Claim(t.Context(), r.PodID(), []store.Want{{Lane: "default", N: 1}}, []string{"stray"}, nil, true)
	if err != nil || len(found.Jobs) != 1 {
		t.Fatal(found, err)
	}
	// The runner does not know about this claim, as if the reply had been lost.
	if _, err := r.Admin("me").Cancel(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	r.pod.Unknown.Raise()
	pgtest.WaitFor(t, 8*time.Second, "the job has finished", func() bool {
		j, err := r.GetJob(t.Context(), made.ID)
		return err == nil && j.State == job.Cancelled
	})
	pgtest.Wait(t, "the hook is called", func() bool { return len(told) > 0 })
	if got, want := <-told, (job.End{ID: made.ID, PipelineID: made.ID, Kind: "stray", Lane: "default", Subject: "s", Attempt: 1, State: job.Cancelled,
		Reason: job.ReasonCancelled}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// claiming returns the number of slots held by claims in progress.
func claiming(r *Runner) int {
	used, sum := 0, map[string]slots.Use{}
	r.pod.Lanes.AddUse(sum)
	for _, lane := range sum {
		used += lane.Used
	}
	return used - r.Running()
}

// takeTurns takes all three permits that limit a pod's claims and finishes. release returns them.
func takeTurns(t *testing.T, s *store.Store) (release func()) {
	t.Helper()
	var ends []func()
	for range 3 {
		end, err := s.Turn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// A job that starts on insert while the search for orphaned claims is waiting for a connection must not be treated as orphaned.
func TestJobStartedDuringOrphanSearch(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	runs := map[int64]int{}
	end := make(chan struct{})
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(ctx context.Context, j *Job[Raw]) (*Outcome, error) {
		mu.Lock()
		runs[j.ID()]++
		mu.Unlock()
		select {
		case <-end:
		case <-ctx.Done():
		}
		return nil, nil
	}})
	var s Submitted
	for try := 0; s.State != job.Running; try++ {
		if try == 20 {
			t.Fatal("no job started on insert during a search for orphaned claims")
		}
		pgtest.Wait(t, "no claim is in progress", func() bool { return claiming(r) == 0 })
		release := takeTurns(t, r.pod.Store) // all connections are busy, as after an outage
		r.pod.Unknown.Raise()
		r.pod.Poller.Timer.Wake()
		time.Sleep(200 * time.Millisecond) // time for the search to start waiting, because that cannot be observed
		// If a claim in progress holds every free slot, the job is inserted as pending, and the loop tries again.
		var err error
		s, err = r.Enqueue(t.Context(), Raw{Name: "k"})
		release()
		if err != nil {
			t.Fatal(err)
		}
		if s.State != job.Running {
			if _, err := r.Admin("me").Cancel(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			pgtest.Wait(t, "the job is cancelled", func() bool {
				j, err := r.GetJob(t.Context(), s.ID)
				return err == nil && j.State.Terminal() && r.Running() == 0
			})
		}
	}
	time.Sleep(1500 * time.Millisecond)
	close(end)
	pgtest.WaitFor(t, 8*time.Second, "the job has finished", func() bool {
		j, err := r.GetJob(t.Context(), s.ID)
		return err == nil && j.State == job.Succeeded
	})
	mu.Lock()
	defer mu.Unlock()
	if n := runs[s.ID]; n != 1 {
		t.Fatalf("the handler ran %d times", n)
	}
}

// A handler that ignores its context keeps its job in the pod's list of running jobs. If the reply to a later claim of the job is lost,
// that claim must still be recognized as orphaned.
func TestOrphanedClaimBesideStuckHandler(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	var runs atomic.Int64
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(context.Context, *Job[Raw]) (*Outcome, error) {
		if runs.Add(1) == 1 {
			<-block
		}
		return nil, nil
	}}, Timeout(50*time.Millisecond), Retry(5, job.Backoff{Base: time.Hour, Cap: time.Hour}))
	t.Cleanup(func() { close(block) })
	s, err := r.Enqueue(t.Context(), Raw{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the stuck job is parked", func() bool {
		if runs.Load() == 0 {
			return false // the job may still be waiting for its first claim
		}
		j, _ := r.GetJob(t.Context(), s.ID)
		return j.State == job.Pending
	})
	// The test makes the job due again and claims it without telling the runner, as if the reply had been lost. Pausing the queue keeps the
	// runner from claiming the job itself.
	pause := func(paused bool) {
		if _, err := r.pod.Pool.Exec(t.Context(), `update trapeze.queue_state set paused = $1`, paused); err != nil {
			t.Fatal(err)
		}
		pgtest.Wait(t, "the runner has applied the change, and no claim is in progress", func() bool {
			is := !r.pod.Lanes.Free(map[string]int{"default": 1})
			return is == paused && (!paused || claiming(r) == 0)
		})
	}
	pause(true)
	if _, err := r.pod.Pool.Exec(t.Context(), `update trapeze.parked set run_after = now() - interval '1 second'`); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the job is promoted and claimed", func() bool {
		if _, _, err := r.pod.Store.Promote(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		found, err := r.pod.Store.Claim(t.Context(), r.PodID(), []store.Want{{Lane: "default", N: 1}}, []string{"k"}, nil, true)
		if err != nil {
			t.Fatal(err)
		}
		return len(found.Jobs) == 1
	})
	r.pod.Unknown.Raise()
	pause(false)
	pgtest.WaitFor(t, 10*time.Second, "the job has finished", func() bool {
		j, err := r.GetJob(t.Context(), s.ID)
		return err == nil && j.State == job.Succeeded
	})
}

// The reply to a branch's claim is lost, and the branch is cancelled before the pod has searched for orphaned claims. The branch must still
// count as finished.
func TestCancelledBranchWithOrphanedClaim(t *testing.T) {
	t.Parallel()
	r := reviewRunner(t, map[string]Func[Raw]{
		"parent": func(context.Context, *Job[Raw]) (*Outcome, error) {
			return FanOut(With(Raw{Name: "stray"}, AllowUnregistered())), nil
		},
	})
	made, err := r.Enqueue(t.Context(), Raw{Name: "parent"})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the parent waits", func() bool {
		j, err := r.GetJob(t.Context(), made.ID)
		return err == nil && j.State == job.Waiting
	})
	found, err := r.pod.Store.Claim(t.Context(), r.PodID(), []store.Want{{Lane: "default", N: 1}}, []string{"stray"}, nil, true)
	if err != nil || len(found.Jobs) != 1 {
		t.Fatal(found, err)
	}
	// The runner does not know about this claim, as if the reply had been lost.
	if _, err := r.Admin("me").Cancel(t.Context(), found.Jobs[0].ID); err != nil {
		t.Fatal(err)
	}
	r.pod.Unknown.Raise()
	pgtest.WaitFor(t, 8*time.Second, "the branch has finished", func() bool {
		j, err := r.GetJob(t.Context(), found.Jobs[0].ID)
		return err == nil && j.State == job.Cancelled
	})
	w, err := r.pod.Store.Waiting(t.Context(), made.ID)
	if err != nil || w.Open != 0 {
		t.Fatalf("the branch has finished, but %d are open (%v)", w.Open, err)
	}
}

// onLine is a log that calls itself with every line.
type onLine func(line string)

func (f onLine) Write(b []byte) (int, error) { f(string(b)); return len(b), nil }

// A heartbeat fails. The pod repeats the heartbeat soon, searches for claims that it does not know, and hands them back; another
// pod is notified and runs them. Neither pod polls or sends a regular heartbeat meanwhile.
func TestOrphanSearchAfterFailedHeartbeat(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	failed := make(chan struct{}, 1)
	log := onLine(func(line string) {
		if strings.Contains(line, "heartbeat failed") {
			select {
			case failed <- struct{}{}:
			default:
			}
		}
	})
	silent := func(kind string) *Runner {
		r, err := New(pgtest.Connect(t, url), Options{HeartbeatInterval: time.Minute, LeaseDuration: 5 * time.Minute, PollInterval: time.Hour, ShutdownGrace: time.Second,
			Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		HandleRaw(r, kind, func(context.Context, *Job[Raw]) (*Outcome, error) { return nil, nil })
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { defer close(stopped); _ = r.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-stopped; r.Close() })
		pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := r.Ready(); return ready })
		return r
	}
	a := silent("other")
	made, err := a.Enqueue(t.Context(), Raw{Name: "stray"}, AllowUnregistered())
	if err != nil {
		t.Fatal(err)
	}
	if found, err := a.pod.Store.Claim(t.Context(), a.PodID(), []store.Want{{Lane: "default", N: 1}}, []string{"stray"}, nil, true); err != nil || len(found.Jobs) != 1 {
		t.Fatal(found, err)
	}
	b := silent("stray")
	rename := func(table, to string) { // without ending connections, because a pod whose listener reconnects sends a heartbeat
		if _, err := pool.Exec(t.Context(), `alter table trapeze.`+table+` rename to `+to); err != nil {
			t.Fatal(err)
		}
	}
	rename("pods", "away")
	a.pod.ReadSettings()
	<-failed
	rename("away", "pods")
	pgtest.WaitFor(t, 30*time.Second, "another pod has run the job", func() bool {
		j, err := b.GetJob(t.Context(), made.ID)
		return err == nil && j.State == job.Succeeded
	})
}
