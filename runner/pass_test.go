package runner

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// A claim that nobody works on is found without any cause: by a pass over the table, for the pod and for its remote workers.
func TestAClaimThatItsPodDoesNotKnowIsFoundByTheSlowPass(t *testing.T) {
	t.Parallel()
	r, err := New(pgtest.Pool(t), Options{HeartbeatEvery: 100 * time.Millisecond, LeaseFor: time.Minute, ShutdownGrace: time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	running := make(chan int64, 10)
	HandleRaw(r, "k", func(ctx context.Context, j *Job[Raw]) (*Outcome, error) {
		running <- j.ID()
		<-ctx.Done()
		return nil, nil
	})
	r.pod.pass.every = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped; r.Close() })
	pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := r.Ready(); return ready })
	worker := uuid.NewString()
	stream, cut := context.WithCancel(t.Context())
	defer cut()
	if _, err := HostOf(r).Receive(stream, SessionOptions{ID: worker, Owner: "ann", Slots: 1, Kinds: []SessionKind{{Name: "far"}},
		Send: func(Assignment) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	known, err := r.Enqueue(t.Context(), Raw{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if id := <-running; id != known {
		t.Fatalf("%d runs, not %d", id, known)
	}
	var unknown []int64
	for _, boot := range []string{r.Boot(), worker} {
		id, err := r.Enqueue(t.Context(), Raw{Name: "unknown"}, Foreign())
		if err != nil {
			t.Fatal(err)
		}
		found, err := r.pod.Store.Claim(t.Context(), boot, []store.Want{{Lane: "default", N: 1}}, []string{"unknown"}, true)
		if err != nil || len(found.Jobs) != 1 {
			t.Fatal(found, err)
		}
		unknown = append(unknown, id)
	}
	if _, err := r.pod.Pool.Exec(t.Context(), `update trapeze.live set claimed_at = now() - interval '1 hour' where state = 'running'`); err != nil {
		t.Fatal(err)
	}
	for _, id := range unknown {
		pgtest.WaitFor(t, 20*time.Second, "it waits again", func() bool {
			j, err := r.Get(t.Context(), id)
			return err == nil && j.State == job.Pending
		})
	}
	if j, err := r.Get(t.Context(), known); err != nil || j.State != job.Running || j.Fence != 1 {
		t.Fatalf("the job that runs is %s with fence %d: %v", j.State, j.Fence, err)
	}
}

// A pod reports in its row how many claims its process has worked on for long.
func TestAPodReportsHowManyClaimsItKnows(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(context.Context, *Job[Raw]) (*Outcome, error) { <-end; return nil, nil }})
	row := func() (n *int) {
		t.Helper()
		if err := r.pod.Pool.QueryRow(t.Context(), `select known_claims from trapeze.pods`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	pgtest.Wait(t, "the pod has said that it knows none", func() bool { n := row(); return n != nil && *n == 0 })
	if _, err := r.Enqueue(t.Context(), Raw{Name: "k"}); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "it runs", func() bool { return r.Running() == 1 })
	k := knownClaims{reported: -1}
	k.report(t.Context(), r.pod.Engine)
	if n := row(); *n != 0 {
		t.Fatalf("%d claims are known for long, of one that is new", *n)
	}
	for key, first := range k.since {
		k.since[key] = first.Add(-knownAge)
	}
	k.report(t.Context(), r.pod.Engine)
	if n := row(); *n != 1 {
		t.Fatalf("%d claims are known for long, want 1", *n)
	}
	close(end)
	pgtest.Wait(t, "it has ended", func() bool { return r.Running() == 0 })
	k.report(t.Context(), r.pod.Engine)
	if n := row(); *n != 0 {
		t.Fatalf("%d claims are known, and none runs", *n)
	}
}
