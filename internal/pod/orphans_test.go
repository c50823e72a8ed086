package pod

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/work"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A pod's row contains the number of claims that the process has been working on for at least knownAge.
func TestPodReportsKnownClaims(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	p := started(t, "k", func(context.Context, *work.Job) (*work.Outcome, error) { <-end; return nil, nil })
	row := func() (n *int) {
		t.Helper()
		if err := p.Pool.QueryRow(t.Context(), `select known_claims from trapeze.pods`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	pgtest.Wait(t, "the pod has reported that it knows no claims", func() bool { n := row(); return n != nil && *n == 0 })
	if _, err := p.Submit(t.Context(), &work.Submission{Kind: "k", Args: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the job is running", func() bool { return p.Runs.Len() == 1 })
	k := knownClaims{reported: -1}
	k.report(t.Context(), p.Engine)
	if n := row(); *n != 0 {
		t.Fatalf("%d long-known claims, although the only claim is new", *n)
	}
	for key, first := range k.since {
		k.since[key] = first.Add(-knownAge)
	}
	k.report(t.Context(), p.Engine)
	if n := row(); *n != 1 {
		t.Fatalf("%d long-known claims, want 1", *n)
	}
	close(end)
	pgtest.Wait(t, "the job has ended", func() bool { return p.Runs.Len() == 0 })
	k.report(t.Context(), p.Engine)
	if n := row(); *n != 0 {
		t.Fatalf("%d known claims, although none is running", *n)
	}
}

// started runs a pod with one kind until the test ends.
func started(t *testing.T, kind string, run func(context.Context, *work.Job) (*work.Outcome, error)) *Pod {
	t.Helper()
	p := newPod(t)
	p.Kinds[kind] = &engine.Handler{Name: kind, Run: run, RunSeconds: p.Metrics.RunSeconds.WithLabelValues(kind).Observe, Ends: p.Ends.Of(kind)}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = p.Run(ctx, []string{kind}, nil) }()
	t.Cleanup(func() { cancel(); <-stopped; p.Close() })
	pgtest.Wait(t, "the pod has started", func() bool { return p.Lease.Trusted() })
	return p
}

// newPod returns a pod that does not run yet.
func newPod(t *testing.T) *Pod {
	t.Helper()
	p, err := New(pgtest.Pool(t), Options{Schema: "trapeze", Logger: slog.New(slog.DiscardHandler), PassEvery: time.Minute, MinScheduleInterval: time.Second,
		RetainSucceeded: -1, RetainFailed: -1, RetainCancelled: -1, RetainEvents: -1,
		Options: identity.Options{Name: "pod", Slots: 4, PollInterval: time.Second, HeartbeatInterval: 200 * time.Millisecond, LeaseDuration: 6 * time.Second,
			ShutdownGrace: time.Second, StuckAfter: time.Second, MaxAttempts: 1, MaxCrashes: 3, MaxFanOut: 10}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
