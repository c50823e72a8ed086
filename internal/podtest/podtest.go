// Package podtest runs pods for the tests of runner and remote/internal/host, and reads the results from jobs, tables, metrics and histories.
package podtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// RawArgs returns a job of a kind, with the given JSON, if any, as its arguments.
func RawArgs(kind string, json ...string) runner.Raw {
	return runner.Raw{Name: kind, JSON: []byte(strings.Join(json, ""))}
}

// New returns a runner with short intervals and one handler per kind, and closes it when the test ends. A handler's error fails its job
// immediately unless the options set a retry policy.
func New(t *testing.T, pool *pgxpool.Pool, o runner.Options, handlers map[string]runner.Func[runner.Raw], options ...runner.HandleOption) *runner.Runner {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 1
	}
	if o.ShutdownGrace == 0 {
		o.ShutdownGrace = 5 * time.Second
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = 200 * time.Millisecond
	}
	r, err := runner.New(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for kind, handler := range handlers {
		runner.HandleRaw(r, kind, handler, options...)
	}
	return r
}

// Start makes a runner and runs it until the test ends.
func Start(t *testing.T, pool *pgxpool.Pool, o runner.Options, handlers map[string]runner.Func[runner.Raw], options ...runner.HandleOption) *runner.Runner {
	t.Helper()
	r := New(t, pool, o, handlers, options...)
	Run(t, r)
	return r
}

// Run starts a runner and stops it when the test ends.
func Run(t *testing.T, r *runner.Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.Close()
	}
	t.Cleanup(stop)
	pgtest.Wait(t, "the runner is ready", func() bool {
		ready, reasons := r.Ready()
		return ready || slices.Contains(reasons, runner.ReasonDrained)
	})
	return stop
}

// Latch returns a channel on which handlers can wait until open is called. If open has not been called when the test ends, the gate opens
// then, before the runners stop.
func Latch(t *testing.T) (wait <-chan struct{}, open func()) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	t.Cleanup(open)
	return c, open
}

// Succeed is a handler that succeeds immediately.
func Succeed(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil }

// Enqueue submits a job and returns its ID.
func Enqueue(t *testing.T, r *runner.Runner, args job.Args, options ...runner.EnqueueOption) int64 {
	t.Helper()
	made, err := r.Enqueue(t.Context(), args, options...)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// Get returns a job.
func Get(t *testing.T, r *runner.Runner, id int64) job.JobRow {
	t.Helper()
	j, err := r.GetJob(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// EnqueueStarted submits a job and waits until it is running. The job may not start immediately, because a claim may be in progress.
func EnqueueStarted(t *testing.T, r *runner.Runner, args job.Args, options ...runner.EnqueueOption) int64 {
	t.Helper()
	id := Enqueue(t, r, args, options...)
	InState(t, r, id, job.Running)
	return id
}

// InState waits until a job is in the given state.
func InState(t *testing.T, r *runner.Runner, id int64, want job.State) job.JobRow {
	t.Helper()
	var j job.JobRow
	pgtest.Wait(t, fmt.Sprintf("job %d is %s", id, want), func() bool { j = Get(t, r, id); return j.State == want }, func() string { return State(t, r, id) })
	return j
}

// WaitEnded waits until a job has finished.
func WaitEnded(t *testing.T, r *runner.Runner, id int64) job.JobRow {
	t.Helper()
	var j job.JobRow
	pgtest.Wait(t, "the job ends", func() bool {
		var err error
		j, err = r.GetJob(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return j.State.Terminal()
	}, func() string { return State(t, r, id) })
	return j
}

// State describes a job for the message of a test that has waited for it in vain: its state, its events, and why it waits.
func State(t *testing.T, r *runner.Runner, id int64) string {
	j, err := r.GetJob(t.Context(), id)
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("job %d (%s, lane %s, subject %q) is %s: attempt %d, %d crashes, fence %d, reason %q, error %q", id, j.Kind, j.Lane, j.Subject, j.State,
		j.Attempt, j.Crashes, j.Fence, ReasonOf(j), Message(j))
	if j.RunAfter != nil {
		text += fmt.Sprintf(", due in %s", time.Until(*j.RunAfter).Round(time.Millisecond))
	}
	events, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 1000)
	if err != nil {
		return text + "\nits events: " + err.Error()
	}
	for _, e := range events {
		text += fmt.Sprintf("\n%s %s %s %s", e.At.Format("15:04:05.000"), e.Event, Deref(e.Message), e.Fields)
	}
	blockers, err := r.Admin("").Blockers(t.Context(), id)
	if err != nil {
		return text + "\nwhy it waits: " + err.Error()
	}
	for _, b := range blockers {
		text += fmt.Sprintf("\nit waits: %+v", b)
	}
	return text
}

// Events returns the names of a job's events.
func Events(t *testing.T, r *runner.Runner, id int64) []string {
	t.Helper()
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, id, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Event)
	}
	return names
}

// ReasonOf returns a job's reason, or an empty string if it has none.
func ReasonOf(j job.JobRow) job.Reason {
	if j.Reason == nil {
		return ""
	}
	return *j.Reason
}

// Message returns a job's error, or an empty string if it has none.
func Message(j job.JobRow) string {
	if j.Error == nil {
		return ""
	}
	return *j.Error
}

// Deref returns the string that s points to, or an empty string for nil.
func Deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
