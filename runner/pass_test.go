package runner

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// A claim that nobody works on is found without any cause: by a pass over the table, for the pod and for its remote workers.
func TestAClaimThatItsPodDoesNotKnowIsFoundByTheSlowPass(t *testing.T) {
	t.Parallel()
	o := Options{HeartbeatEvery: 100 * time.Millisecond, LeaseFor: time.Minute, ShutdownGrace: time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}.withDefaults()
	often := o.pod()
	often.PassEvery = 100 * time.Millisecond
	p, err := pod.New(pgtest.Pool(t), often)
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{pod: p, opts: o, registered: map[string]*registered{}}
	running := make(chan int64, 10)
	HandleRaw(r, "k", func(ctx context.Context, j *Job[Raw]) (*Outcome, error) {
		running <- j.ID()
		<-ctx.Done()
		return nil, nil
	})
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
