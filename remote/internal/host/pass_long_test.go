//go:build long

package host_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
)

// A periodic table scan finds claims that no process is working on, both the pod's and its remote workers'.
func TestUnknownClaimInSlowPass(t *testing.T) {
	t.Parallel()
	running := make(chan int64, 10)
	p, err := pod.New(pgtest.Pool(t), pod.Options{Schema: "trapeze", Logger: slog.New(slog.DiscardHandler), PassEvery: 100 * time.Millisecond,
		MinScheduleInterval: time.Second, RetainSucceeded: -1, RetainFailed: -1, RetainCancelled: -1, RetainEvents: -1,
		Options: identity.Options{Name: "pod", Slots: 4, PollInterval: 10 * time.Second, HeartbeatInterval: 100 * time.Millisecond, LeaseDuration: time.Minute,
			ShutdownGrace: time.Second, StuckAfter: 10 * time.Second, MaxAttempts: 1, MaxCrashes: 3, MaxFanOut: 10}})
	if err != nil {
		t.Fatal(err)
	}
	p.Kinds["k"] = &engine.Handler{Name: "k", RunSeconds: p.Metrics.RunSeconds.WithLabelValues("k").Observe, Ends: p.Ends.Of("k"),
		Run: func(ctx context.Context, j *work.Job) (*work.Outcome, error) {
			running <- j.Claimed.ID
			<-ctx.Done()
			return nil, nil
		}}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = p.Run(ctx, []string{"k"}, nil) }()
	t.Cleanup(func() { cancel(); <-stopped; p.Close() })
	pgtest.Wait(t, "the pod is ready", func() bool { return p.Lease.Trusted() })
	worker := uuid.NewString()
	stream, cut := context.WithCancel(t.Context())
	defer cut()
	if _, err := host.Of(p).Receive(stream, host.Options{ID: worker, Owner: "ann", Slots: 1, Kinds: []engine.RemoteKind{{Name: "far"}},
		Send: func(engine.Assignment) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	known, err := p.Submit(t.Context(), &work.Submission{Kind: "k", Args: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	if id := <-running; id != known.ID {
		t.Fatalf("job %d is running, not %d", id, known.ID)
	}
	var unknown []int64
	for _, podID := range []string{p.PodID(), worker} {
		s, err := p.Submit(t.Context(), &work.Submission{Kind: "unknown", Args: []byte("{}"), AllowUnregistered: true})
		if err != nil {
			t.Fatal(err)
		}
		number := pgtest.QueryOne[int64](t, p.Pool, `select coalesce((select stream from trapeze.remote_workers where pod = $1), 0)`, podID)
		found, err := p.Store.OfStream(number).Claim(t.Context(), podID, []store.Want{{Lane: "default", N: 1}}, []string{"unknown"}, nil, true)
		if err != nil || len(found.Jobs) != 1 {
			t.Fatal(found, err)
		}
		unknown = append(unknown, s.ID)
	}
	if _, err := p.Pool.Exec(t.Context(), `update trapeze.live set claimed_at = now() - interval '1 hour' where state = 'running'`); err != nil {
		t.Fatal(err)
	}
	for _, id := range unknown {
		pgtest.WaitFor(t, 20*time.Second, "it waits again", func() bool {
			j, err := view.Job(t.Context(), p.Commands, id)
			return err == nil && j.State == job.Pending
		})
	}
	if j, err := view.Job(t.Context(), p.Commands, known.ID); err != nil || j.State != job.Running || j.Fence != 1 {
		t.Fatalf("the running job is %s with fence %d: %v", j.State, j.Fence, err)
	}
}
