// Package settler implements the part of a run that writes to PostgreSQL: it records the start of a run, and turns a handler's verdict into
// the job's end, next attempt, branches and next steps. It uses an engine that acts for the holder of all Temporal claims. Several runs'
// completions can therefore share a commit, and all rules about how a job continues come from package engine.
package settler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/interpreter"
	"github.com/trapeze-run/trapeze/temporal/internal/steps"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Settler settles runs of one engine. Create it after all handlers have been registered, call Live, and start the workers once it is ready.
type Settler struct {
	*engine.Engine
	pod    *pod.Pod
	outbox *outbox.Outbox
	ready  chan struct{}
	// Database identifies the database. It is set once the settler is ready.
	Database string
}

// New returns a settler for an engine.
func New(p *pod.Pod, name string, o *outbox.Outbox) *Settler {
	s := &Settler{pod: p, outbox: o, ready: make(chan struct{})}
	options := p.Opts
	options.PodID, options.Name, options.DirectURL, options.ClaimAhead = outbox.PodID(name), name, "off", false
	s.Engine = engine.New(p.Services, options, member{s})
	for kind, k := range p.Kinds {
		settled := *k
		settled.Timeout, settled.ContinueWithoutDatabase = 0, true // the worker applies these options
		s.Kinds[kind] = &settled
	}
	s.Handle([]string{})
	return s
}

// Live runs the settler until ctx is cancelled.
func (s *Settler) Live(ctx context.Context) error {
	b, err := s.first(ctx)
	for err != nil {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
			b, err = s.first(ctx)
		}
	}
	s.FirstBeat(time.Now(), b)
	close(s.ready)
	s.Engine.Live(ctx, func(context.Context) { s.CloseRuns() })
	return nil
}

func (s *Settler) first(ctx context.Context) (b store.Beat, err error) {
	if s.Database, err = s.outbox.Database(ctx); err != nil {
		return b, err
	}
	return member{s}.Heartbeat(ctx, s.PodID())
}

// Ready returns a channel that is closed when the settler knows the lanes of next steps.
func (s *Settler) Ready() <-chan struct{} { return s.ready }

// Register registers the local activities that the workflow uses.
func (s *Settler) Register(w worker.Registry) {
	w.RegisterActivityWithOptions(s.Read, activity.RegisterOptions{Name: interpreter.Read})
	w.RegisterActivityWithOptions(s.Begin, activity.RegisterOptions{Name: interpreter.Begin})
	w.RegisterActivityWithOptions(s.Settle, activity.RegisterOptions{Name: interpreter.Settle})
}

// Begin records the calling run's start and returns the run's id. It returns an empty id if another run executes the epoch or the epoch is
// over.
func (s *Settler) Begin(ctx context.Context, in wire.Run) (run string, err error) {
	if err := s.Owns(ctx, in); err != nil {
		return "", err
	}
	run = activity.GetInfo(ctx).WorkflowExecution.RunID
	err = s.outbox.Started(ctx, in.ID, in.Epoch, run)
	if errors.Is(err, outbox.ErrInactive) {
		return "", nil
	}
	if err == nil {
		err = failpoint.Hit(steps.Begun)
	}
	return run, err
}

// Owns returns an error if the run belongs to another database. If this database was restored from a dump, an earlier run belongs to it if
// the run's claim is in the dump.
func (s *Settler) Owns(ctx context.Context, in wire.Run) error {
	if in.Database == s.Database {
		return nil
	}
	held, err := s.outbox.Holds(ctx, in.ID, in.Epoch, in.ClaimedAt)
	if err == nil && !held {
		err = temporal.NewApplicationError(fmt.Sprintf("job %d in epoch %d is a job of another database: give each database that uses the namespace its own prefix",
			in.ID, in.Epoch), interpreter.OtherDatabase)
	}
	return err
}

// Settle writes a run's verdict. It is idempotent.
func (s *Settler) Settle(ctx context.Context, in wire.Run, v wire.Verdict) error {
	err := failpoint.Hit(steps.Settling)
	if err == nil {
		err = s.Owns(ctx, in)
	}
	if err == nil {
		err = s.settle(ctx, in, v)
	}
	if err == nil {
		err = failpoint.Hit(steps.Written)
	}
	if err != nil {
		return err
	}
	if err := s.outbox.Remove(ctx, in.ID, in.Epoch); err != nil {
		s.Log.DebugContext(ctx, "could not remove a row of the outbox: the reconciler will", "err", err)
	}
	return nil
}

func (s *Settler) settle(ctx context.Context, in wire.Run, v wire.Verdict) error {
	lease := s.outbox.Lease(in.ID, in.Epoch)
	if v.Lost != "" || v.Crashed != "" {
		if err := s.Note(ctx, lease, v.Details.Events, v.Details.Checkpoint); err != nil {
			return err
		}
	}
	if v.Lost != "" {
		return notStale(s.outbox.Again(ctx, in.ID, in.Epoch, v.Lost))
	}
	if v.Crashed != "" {
		_, err := s.outbox.End(ctx, in.ID, in.Epoch, outbox.End{State: job.Failed, Reason: job.ReasonCrashed, Class: job.ClassCrashLimit, Error: v.Crashed})
		return notStale(err)
	}
	held, err := store.ClaimsToAdopt(ctx, s.Commands, lease.Pod, []job.Lease{lease})
	if err != nil || len(held) == 0 {
		return s.DBError(err) // the verdict has been written, or a command has ended the job
	}
	a := held[0]
	if s.Kinds[a.Kind] == nil {
		return temporal.NewApplicationError(fmt.Sprintf("settle job %d: no handler for kind %q here", a.ID, a.Kind), interpreter.UnknownKind)
	}
	v.AllowUnregistered()
	wrote, err := s.Conclude(ctx, a, engine.ExternalRun{Outcome: v.Outcome, Err: v.Failure.Err(), Cause: v.CauseErr(), Took: v.Took,
		Events: v.Details.Events, Progress: v.Details.Progress, Checkpoint: v.Details.Checkpoint})
	if wrote || err != nil {
		return err
	}
	at, err := s.Commands.ClaimOutcome(ctx, lease)
	if err == nil && at.Held {
		err = errors.New("the outcome was not written yet")
	}
	return err
}

// notStale returns nil if err means that the job has already ended or is in another epoch, and err otherwise.
func notStale(err error) error {
	if errors.Is(err, outbox.ErrInactive) {
		return nil
	}
	return err
}

// member makes the engine act for the holder of the claims. Because the holder is not among the pods' rows, its lease is always valid, and
// it claims nothing.
type member struct{ s *Settler }

func (m member) Open(context.Context) error { return nil }

// Heartbeat reads the lanes and the lane of each kind, which determine the lanes in which next steps run.
func (m member) Heartbeat(ctx context.Context, podID string) (store.Beat, error) {
	b, err := m.s.pod.Heartbeats.Heartbeat(ctx, podID, m.s.Opts.LeaseDuration, false)
	return store.Beat{Open: true, Now: b.Now, Left: m.s.Opts.LeaseDuration, Lanes: b.Lanes, LaneKinds: b.LaneKinds, History: b.History}, err
}

func (m member) Apply(store.Beat) {}

func (m member) LeaseLost(context.Context) {}

func (m member) HistoryChanged() {}

func (m member) WakePeers() {
	m.s.pod.Wake()
	m.s.pod.WakePeers()
}

func (member) Escalate() {}

func (m member) Cancel(claim job.Lease, why job.Reason) { m.s.pod.Member.Cancel(claim, why) }

// Claims reports that this process is not responsible for the claims; the reconciler is.
func (m member) Claims(context.Context, string) ([]store.Held, bool, error) { return nil, false, nil }

func (m member) ClaimMissing(*engine.Run) bool { return true }

func (m member) ClaimsCompared(context.Context) {}

func (m member) MarkLimit() (time.Duration, func()) { return m.s.pod.Opts.PollInterval, m.s.Wake }
