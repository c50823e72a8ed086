// Package activities runs job handlers as Temporal activities. An activity needs neither a lease nor a connection to PostgreSQL: its
// checkpoints, progress and events travel in its heartbeat details, and the workflow writes its verdict.
//
// If a worker dies, its heartbeats stop, and Temporal passes the activity to another worker along with the latest details. A handler that
// returns an error has not crashed: the error is a verdict, and PostgreSQL decides when the job runs again.
package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/steps"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Handlers runs the registered handlers.
type Handlers struct {
	Engine *engine.Engine // holds the registered kinds; the engine claims no jobs
	Client client.Client
	PodID  string // the id of this process
	// Owns returns an error if the run belongs to another database. It is nil in a process without a connection to PostgreSQL.
	Owns func(ctx context.Context, in wire.Run) error
	// Reader returns the writer through which an activity reads results, branches and tokens for its job. It writes nothing.
	Reader func(ctx context.Context, in wire.Run) work.Writer
}

// Register registers an activity for each kind that the pod runs. If the pod receives an activity of another kind, Temporal reoffers the
// activity to the workers.
func (h *Handlers) Register(w worker.Registry) {
	for _, kind := range h.Engine.HandledKinds {
		w.RegisterActivityWithOptions(h.Run, activity.RegisterOptions{Name: kind})
	}
}

// Run calls a job's handler once. It returns an error only if this or another worker must call the handler again, or if the run was reset.
func (h *Handlers) Run(ctx context.Context, in wire.Run) (v wire.Verdict, err error) {
	if h.Engine.Lanes.Drained() { // the worker is about to stop
		return v, temporal.NewApplicationErrorWithOptions("the pod is drained", "drained", temporal.ApplicationErrorOptions{NextRetryDelay: 200 * time.Millisecond})
	}
	if h.Owns != nil {
		if err := h.Owns(ctx, in); err != nil {
			return v, err
		}
	}
	if run := activity.GetInfo(ctx).WorkflowExecution.RunID; run != in.Run {
		return v, temporal.NewNonRetryableApplicationError("the run "+in.Run+" was reset to "+run, "reset", nil) // the fences of the reset run would repeat
	}
	c, err := h.open(ctx, in)
	if err != nil {
		return v, err
	}
	k := h.Engine.Kinds[in.Kind]
	if limit := h.maxCrashes(in, k); c.crashes(in) >= limit {
		return wire.Verdict{Crashed: fmt.Sprintf("its worker died or lost its connection %d times", limit), Details: c.details}, nil
	}
	if k.RequiresDatabase {
		return wire.Verdict{Failure: wire.FailureOf(job.Permanent(fmt.Errorf("kind %q is registered with RequiresDatabase: %w", in.Kind, errInPostgreSQL)))}, nil
	}
	c.details.Starts++
	c.details.Attempt = c.attempt
	if err := c.beat(ctx); err != nil {
		return v, err // the handler has not been called
	}
	if err := failpoint.Hit(steps.Calling); err != nil {
		return v, err
	}
	began := time.Now()
	handling, cancel := context.WithCancelCause(h.Engine.Tracing.Continue(ctx, in.Trace))
	defer cancel(nil)
	if k.Timeout > 0 {
		var stop context.CancelFunc
		handling, stop = context.WithDeadlineCause(handling, began.Add(k.Timeout), job.ErrTimeout)
		defer stop()
	}
	c.cancel = cancel
	returned, beating := make(chan struct{}), make(chan struct{})
	go func() { defer close(beating); c.keepBeating(ctx, returned, k.ContinueWithoutDatabase) }()
	c.watchdog.Start(cancel, h.inactivityTimeout(in.Lane, k))
	o, left, err := h.perform(handling, h.assignment(in, c, k), c)
	v.Took, v.Began = time.Since(began), began
	c.watchdog.Stop()
	cause := context.Cause(handling)
	if ctx.Err() != nil && errors.Is(cause, context.Canceled) {
		cause = job.ErrShutdown // the worker's grace period is over
	}
	close(returned)
	<-beating
	if err := failpoint.Hit(steps.Returned); err != nil {
		return v, err
	}
	switch {
	case err != nil && errors.Is(cause, job.ErrShutdown):
		c.mu.Lock()
		c.details.Starts--
		c.mu.Unlock()
		_ = c.beat(context.WithoutCancel(ctx)) // without this heartbeat, the hand-back would count as a crash
		return v, temporal.NewApplicationErrorWithOptions("handed back: the worker is shutting down", "handed_back",
			temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})
	case err != nil && errors.Is(cause, job.ErrLeaseLost):
		return v, fmt.Errorf("handed back: %w", cause) // if the handler had succeeded, its result would count unless the handler was called elsewhere
	case errors.Is(err, engine.ErrNoDatabase):
		err = job.Permanent(fmt.Errorf("write in the commit that ends job %d: %w", in.ID, errInPostgreSQL))
	}
	v, err = c.verdict(v, o, err, cause)
	if left != nil && err == nil {
		h.keepSlot(ctx, c, v, left)
	}
	return v, err
}

// keepSlot completes the activity of a handler that ignores its cancelled context, but keeps the slot occupied until the handler returns or
// the worker stops.
func (h *Handlers) keepSlot(ctx context.Context, c *call, v wire.Verdict, left <-chan struct{}) {
	if err := h.Client.CompleteActivity(context.WithoutCancel(ctx), c.token, v, nil); err != nil {
		return // Run returns the verdict instead, which completes the activity and frees the slot
	}
	select {
	case <-left:
	case <-activity.GetWorkerStopChannel(ctx):
	}
}

// perform calls a handler and waits for it to return. If the handler ignores its cancelled context for too long, perform stops waiting. The
// outcome then no longer counts, and left is closed when the handler returns.
func (h *Handlers) perform(ctx context.Context, a engine.Assignment, c *call) (o *work.Outcome, left <-chan struct{}, err error) {
	type result struct {
		outcome *work.Outcome
		err     error
	}
	results := make(chan result, 1)
	go func() {
		o, err := engine.Perform(ctx, h.Engine, h.PodID, a, c)
		results <- result{o, err}
	}()
	select {
	case r := <-results:
		return r.outcome, nil, r.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(h.Engine.Opts.StuckAfter)
	defer timer.Stop()
	select {
	case r := <-results:
		return r.outcome, nil, r.err
	case <-timer.C:
		h.Engine.Metrics.Stuck.Inc()
		gone := make(chan struct{})
		go func() {
			<-results
			h.Engine.Metrics.Stuck.Dec()
			close(gone)
		}()
		cause := context.Cause(ctx)
		h.Engine.Log.ErrorContext(ctx, "handler ignores its cancelled context", telemetry.JobID, a.ID, telemetry.Kind, a.Kind, telemetry.Cause, cause)
		return nil, gone, fmt.Errorf("handler ignored its cancelled context for %s: %w", h.Engine.Opts.StuckAfter, cause)
	}
}

// verdict completes the verdict on a handler that has returned.
func (c *call) verdict(v wire.Verdict, o *work.Outcome, err, cause error) (wire.Verdict, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	v.Cause, v.Details = wire.CauseOf(cause), c.details
	if err == nil {
		v.Outcome = o
		raw, failed := json.Marshal(v)
		if err = failed; err == nil {
			err = wire.TooLarge("an outcome", len(raw))
		}
	}
	if err != nil {
		v.Outcome, v.Failure = nil, wire.FailureOf(err)
	}
	return v, nil
}

func (h *Handlers) assignment(in wire.Run, c *call, k *engine.Handler) engine.Assignment {
	a := engine.Assignment{Claimed: *in.Claimed(), AttemptLimit: cmp.Or(k.MaxAttempts, h.Engine.Opts.MaxAttempts)}
	a.Fence, a.Crashes = outbox.Fence(in.Epoch, c.attempt), c.crashes(in)-1
	if in.MaxAttempts != nil {
		a.AttemptLimit = *in.MaxAttempts
	}
	if c.details.Checkpoint != nil {
		a.Checkpoint = c.details.Checkpoint
	}
	return a
}

func (h *Handlers) maxCrashes(in wire.Run, k *engine.Handler) int {
	if in.MaxCrashes != nil {
		return *in.MaxCrashes
	}
	return cmp.Or(k.MaxCrashes, h.Engine.Opts.MaxCrashes)
}

// inactivityTimeout returns how long a handler may go without showing activity. A worker without a database does not know the lane's setting.
func (h *Handlers) inactivityTimeout(lane string, k *engine.Handler) time.Duration {
	if k.InactivityTimeout != nil {
		return *k.InactivityTimeout
	}
	if after, set := h.Engine.Lanes.InactivityTimeout(lane); set {
		return after
	}
	return h.Engine.Opts.InactivityTimeout
}

// open begins a call of the activity. It takes over the details of the previous call if that call crashed.
func (h *Handlers) open(ctx context.Context, in wire.Run) (*call, error) {
	info := activity.GetInfo(ctx)
	c := &call{Writer: h.Reader(ctx, in), client: h.Client, id: in.ID, token: info.TaskToken, attempt: int(info.Attempt), within: in.Heartbeat,
		stop: activity.GetWorkerStopChannel(ctx), grace: h.Engine.Opts.ShutdownGrace}
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &c.details); err != nil {
			return nil, err
		}
	}
	c.attempt = max(c.attempt, c.details.Attempt+1)
	return c, nil
}

// crashes returns the number of crashes since the latest checkpoint. Each call that has not returned counts as a crash.
func (c *call) crashes(in wire.Run) int {
	if c.details.Forgiven {
		return c.details.Starts
	}
	return in.Crashes + c.details.Starts
}
