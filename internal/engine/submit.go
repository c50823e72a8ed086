package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// submitter submits jobs: it checks them, builds and inserts their rows, and reads back the outcome after a lost reply. It also builds next
// steps' rows.
type submitter struct {
	*shared
	start func(podID string, n store.NewJob) bool // runs a job that was started on insert
}

// CheckSubmission checks a job and its next steps, adds its kind's crash limit, and encodes its plan.
func (sub *submitter) CheckSubmission(w *work.Submission) error {
	if err := w.Validate(); err != nil {
		return fmt.Errorf("%w (kind %s)", err, w.Kind)
	}
	if w.When != job.AfterSuccess {
		return fmt.Errorf("%w: submit %s: Always is an option of a join", job.ErrInvalid, w.Kind)
	}
	if sub.Kinds[w.Kind] == nil && !w.AllowUnregistered {
		return fmt.Errorf("%w: submit %q: register its handler, or use AllowUnregistered() if another program handles it", job.ErrUnknownKind, w.Kind)
	}
	if n := len(w.Planned); n > job.MaxChainSteps {
		return fmt.Errorf("%w: submit %s: a chain of %d steps, at most %d", job.ErrTooLarge, w.Kind, n+1, job.MaxChainSteps)
	}
	if err := sub.CheckSteps(w.Planned, w.AllowUnregistered); err != nil {
		return err
	}
	w.MaxCrashes = sub.crashLimit(w.Kind)
	w.LimitAttempts()
	return w.EncodePlan()
}

// CheckSteps checks that the kinds of planned steps are known or allowed to be unregistered.
func (sub *submitter) CheckSteps(steps []work.Step, foreign bool) error {
	for _, s := range steps {
		if sub.Kinds[s.Kind] == nil && !foreign && !s.AllowUnregistered {
			return fmt.Errorf("%w: plan step %q: register its handler, or use AllowUnregistered() if another program handles it", job.ErrUnknownKind, s.Kind)
		}
	}
	return nil
}

// CheckFollowing checks a next step or a child, and marks it as emitted by a handler. It rejects a job with an idempotency key, a pipeline
// name, an approval or a submitter, because these belong to the pipeline.
func (sub *submitter) CheckFollowing(what string, w *work.Submission) error {
	w.Emitted = true
	work.MarkEmitted(w.Planned)
	if err := sub.CheckSubmission(w); err != nil {
		return err
	}
	switch {
	case w.IdempotencyKey != "" || w.Pipeline != "":
		return fmt.Errorf("%w: %s %s: idempotency keys and pipeline names are allowed only on submissions", job.ErrInvalid, what, w.Kind)
	case w.Approval:
		return fmt.Errorf("%w: %s %s: approval is allowed only on submissions", job.ErrInvalid, what, w.Kind)
	case w.Ordered || w.StartBy != 0:
		return fmt.Errorf("%w: %s %s: order and start limits are allowed only on submissions", job.ErrInvalid, what, w.Kind)
	case w.Replace:
		return fmt.Errorf("%w: %s %s: replace is allowed only on submissions", job.ErrInvalid, what, w.Kind)
	case w.Submitter != "":
		return fmt.Errorf("%w: %s %s: submitter is set by its pipeline", job.ErrInvalid, what, w.Kind)
	}
	return nil
}

// predecessor describes the job that a step follows. It determines the step's position in the pipeline, and the step's lane and priority
// unless the step sets them.
type predecessor struct {
	id, pipeline int64
	step         int
	lane         string
	priority     int
	submitter    string
	key          string
	ordered      bool
}

// follow builds a step's row, without its id and branch. The step inherits the predecessor's submitter and, unless it sets them itself, the
// lane, priority and key. If the predecessor is ordered, a step with a subject is, too.
func (sub *submitter) follow(w *work.Submission, from predecessor) store.NewJob {
	if w.Priority == nil {
		w.Priority = &from.priority
	}
	if w.Key == nil {
		w.Key = &from.key
	}
	w.Submitter = from.submitter // a principal that can see one of a pipeline's jobs can see all of them
	n := w.Row(0, sub.Lanes.LaneOfStep(w.Kind, w.Lane, from.lane))
	n.Actor, n.Approved = "handler", !w.Emitted || n.Lane == from.lane // a step that stays in its predecessor's lane needs no new approval
	n.PipelineID, n.ParentID, n.Step = from.pipeline, &from.id, from.step+1
	n.Ordered = n.Subject != "" && (n.Ordered || from.ordered)
	return n
}

// crashLimit returns a kind's crash limit, which is stored with the job because the pod that recovers the job may not know its kind.
func (sub *submitter) crashLimit(kind string) *int {
	if k := sub.Kinds[kind]; k != nil && k.MaxCrashes > 0 {
		return &k.MaxCrashes
	}
	return nil
}

func (sub *submitter) Submit(ctx context.Context, w *work.Submission) (s work.Submitted, err error) {
	n, err := sub.newRow(ctx, nil, w)
	if err != nil {
		return s, err
	}
	ctx, span := sub.Tracing.StartSubmission(ctx, w.Kind, n.Lane, 1)
	n.Trace = telemetry.Traceparent(span)
	if w.UniqueKey != nil || w.IdempotencyKey != "" {
		s, err = sub.submitOnce(ctx, w, n)
	} else {
		s, err = sub.submitNew(ctx, w, n)
	}
	telemetry.EndSubmission(span, s.ID, err)
	return s, err
}

// newIDs reserves ids, on the store's pool or, if tx is not nil, in the caller's transaction. A caller that holds a connection must not wait for
// a second one: behind a pooler, as many such callers as there are server connections would all wait forever.
func (sub *submitter) newIDs(ctx context.Context, tx pgx.Tx, n int) ([]int64, error) {
	if tx != nil {
		return sub.Commands.NewIDsIn(ctx, tx, n)
	}
	return sub.Commands.NewIDs(ctx, n)
}

// newRow checks a submission and builds its row.
func (sub *submitter) newRow(ctx context.Context, tx pgx.Tx, w *work.Submission) (n store.NewJob, err error) {
	if err := sub.CheckSubmission(w); err != nil {
		return n, err
	}
	if err := sub.checkStepLanes(ctx, tx, w, nil); err != nil {
		return n, err
	}
	lane, err := sub.LaneAsking(ctx, tx, w)
	if err != nil {
		return n, err
	}
	ids, err := sub.newIDs(ctx, tx, 1)
	if err != nil {
		return n, err
	}
	return w.First(ids[0], lane), nil
}

// checkStepLanes checks that the lanes of a submission's next steps exist. It skips those in checked, and adds the others to it unless it is nil.
func (sub *submitter) checkStepLanes(ctx context.Context, tx pgx.Tx, w *work.Submission, checked map[string]bool) error {
	for _, s := range w.Planned {
		if s.Lane == "" || checked[s.Lane] {
			continue
		}
		if _, _, err := sub.laneAsking(ctx, tx, s.Kind, s.Lane); err != nil {
			return err
		}
		if checked != nil {
			checked[s.Lane] = true
		}
	}
	return nil
}

// LaneAsking returns a submission's lane: the named lane, which must exist or match a template, or its kind's lane if no lane is named. It delays a
// job whose lane is still to be made, or may be deleted soon, by a moment: the promotion of the job makes its lane. If the latest heartbeat did not
// report the lane, it reads the database, in the caller's transaction unless tx is nil.
func (sub *submitter) LaneAsking(ctx context.Context, tx pgx.Tx, w *work.Submission) (string, error) {
	lane, ready, err := sub.laneAsking(ctx, tx, w.Kind, w.Lane)
	if err == nil && !ready {
		w.Delay = max(w.Delay, time.Millisecond)
	}
	return lane, err
}

func (sub *submitter) laneAsking(ctx context.Context, tx pgx.Tx, kind, named string) (lane string, ready bool, err error) {
	if lane, known := sub.Lanes.Lookup(kind, named); known {
		return lane, true, nil
	}
	found, err := view.LaneFor(ctx, sub.Commands, tx, kind, named, job.DefaultLane)
	if err != nil {
		return "", false, sub.DBError(err)
	}
	if !found.Exists {
		return "", false, fmt.Errorf("%w: submit %s to lane %q", job.ErrUnknownLane, kind, named)
	}
	if named != "" {
		return named, found.Ready, nil
	}
	if declared := sub.Opts.DeclaredLanes[kind]; found.Lane == job.DefaultLane && declared != "" && declared != found.Lane {
		if of, err := view.LaneFor(ctx, sub.Commands, tx, kind, declared, job.DefaultLane); err != nil {
			return "", false, sub.DBError(err)
		} else if !of.Exists {
			return "", false, fmt.Errorf("%w: Options.Lanes declares lane %q for kind %s, but the database does not have it yet: "+
				"call migrate.Up with these options, or Run, before the first submission", job.ErrUnknownLane, declared, kind)
		}
	}
	return found.Lane, true, nil
}

// submitNew submits a job without keys, and starts it on insert if possible.
func (sub *submitter) submitNew(ctx context.Context, w *work.Submission, n store.NewJob) (work.Submitted, error) {
	lane := n.Lane
	// If the job cannot start in this process, the same statement inserts it as pending.
	podID, reserved := sub.PodID(), false
	if !n.NeedsApproval {
		podID, reserved = sub.reserveFor(n.Kind, lane, n.DelayMillis, n.Priority-1) // Priority-1: wait behind jobs of the same priority
	}
	n.Starts = reserved
	release := func() {
		if reserved {
			sub.Lanes.Release(lane, 1)
		}
	}
	list := []store.NewJob{n}
	if n.Starts {
		sub.InFlight.Add(n.ID)
		defer func() { sub.InFlight.Remove(list[0].ID) }()
	}
	entered, err := sub.insert(ctx, podID, list)
	if err != nil {
		release()
		return work.Submitted{}, err
	}
	n = list[0]
	sub.Metrics.Enqueued.Inc()
	if entered.Places[n.ID] != store.PlacedRunning || !sub.start(podID, n) {
		release()
	}
	switch entered.Places[n.ID] {
	case store.PlacedPending:
		sub.WakeAll()
	case store.PlacedWaiting, store.PlacedKeyed:
		sub.LinesChanged(n.Lines()...)
	case store.PlacedParked:
		sub.WakeAfter(w.Delay)
	}
	if n.Starts && slots.Slow(entered.Took, 0) {
		sub.FindMarks(ctx, n.Lane) // too late for this job, which has already started, but later submissions will be faster
	}
	return submitted(n, entered.Places), nil
}

// submitted describes a job that has just been submitted.
func submitted(n store.NewJob, places map[int64]store.Place) work.Submitted {
	s := work.Submitted{ID: n.ID, PipelineID: n.ID, State: job.Pending}
	switch places[n.ID] {
	case store.PlacedRunning:
		s.State = job.Running
	case store.PlacedAwaiting:
		s.State = job.AwaitingApproval
	}
	return s
}

// startedOnInsert returns the claim on a job that this process has inserted and started in a single statement. at is the database's time.
func startedOnInsert(n store.NewJob, at time.Time) *store.Claimed {
	pipeline := n.PipelineID
	if pipeline == 0 {
		pipeline = n.ID
	}
	return &store.Claimed{
		ID: n.ID, Lane: n.Lane, Priority: n.Priority, Fence: 1, Epoch: 1, Attempt: 1, ClaimedAt: at, ReadyAt: at, DueAt: at, Path: "fast", Definition: store.Definition{
			Kind: n.Kind, Subject: n.Subject, Key: n.Key, Args: n.Args, PipelineID: pipeline, ParentID: n.ParentID, Step: n.Step, Branch: n.Branch, Planned: n.Planned,
			MaxAttempts: n.MaxAttempts, MaxCrashes: n.MaxCrashes, Submitter: n.Submitter, Trace: n.Trace, Ordered: n.Ordered, CreatedAt: at,
		},
	}
}

// reserveFor reserves a slot for a job that is about to be inserted, if the job may start on insert in this process. It reserves none if a
// job with a higher priority than the given one is waiting in memory for a slot. It returns the pod id to store with the job.
func (i *shared) reserveFor(kind, lane string, delayMillis int64, priority int) (podID string, reserved bool) {
	podID = i.Lease.ID()
	// Check the lease before reading Handled, which is not final until the first heartbeat.
	if delayMillis > 0 || i.Closing.Load() || !i.Lease.Trusted() || !i.Handled[kind] || i.Ahead.MoreUrgent(lane, priority) {
		return podID, false
	}
	return podID, i.Lanes.Reserve(lane)
}

// insert inserts jobs, with other ids if theirs are in use. A second attempt after a lost reply waits if the first is still committing.
func (sub *submitter) insert(ctx context.Context, podID string, list []store.NewJob) (entered store.Enqueued, err error) {
	err = sub.untilSubmitted(ctx, podID, each(list), func(ctx context.Context, again bool) (err error) {
		if again {
			entered.Places, err = sub.Commands.Enqueue(ctx, podID, list)
		} else if entered, err = sub.insertOnce(ctx, podID, list); err == nil {
			err = failpoint.Hit(failpoint.EnqueueDone)
		}
		return err
	}, func(places map[int64]store.Place) { entered.Places = places })
	return entered, err
}

// untilSubmitted sends a submission, with other ids if those of its jobs are in use. After a lost reply, it finds out whether the jobs were
// stored; if they were, it calls found.
func (sub *submitter) untilSubmitted(ctx context.Context, podID string, jobs []*store.NewJob, send func(ctx context.Context, again bool) error, found func(map[int64]store.Place)) error {
	insert := func() error {
		err := sub.DBError(send(ctx, false))
		if !store.Unknown(err) {
			return err
		}
		known := func(err error) bool { return store.Refused(err) || sub.Commands.IDTaken(err) || store.Class(err) == "" }
		if !errors.Is(err, store.ErrHeld) { // further statements would also wait for the caller's connection
			// Finding out the outcome is worth some extra time, even if the caller's deadline has passed.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sub.Opts.LeaseDuration)
			defer cancel()
			err = sub.untilKnown(ctx, err, func(ctx context.Context) (bool, error) {
				places, err := sub.Commands.Submitted(ctx, podID, jobs)
				if err != nil || len(places) < len(jobs) { // a submission is stored completely or not at all
					return false, err
				}
				found(places)
				return true, nil
			}, func(ctx context.Context) error { return send(ctx, true) }, known)
		}
		if err == nil || known(err) {
			return err
		}
		sub.Unknown.Raise() // if a job belongs to this pod after all, a search finds it
		return fmt.Errorf("%w (submit %s as job %d): %w", job.ErrOutcomeUnknown, jobs[0].Kind, jobs[0].ID, err)
	}
	return sub.withFreeIDs(ctx, nil, jobs, insert(), insert)
}

// insertOnce inserts jobs with a statement that suits their number.
func (sub *submitter) insertOnce(ctx context.Context, podID string, list []store.NewJob) (store.Enqueued, error) {
	if store.Bulky(list) {
		if done, err := store.EnqueueBulk(ctx, sub.Commands, list); err != nil || done {
			return store.Enqueued{}, err
		}
	}
	return sub.Commands.EnqueueFrom(ctx, podID, list, sub.Marks.ForSubmission(list[0].Lane))
}

// SubmitTx submits a job in the caller's transaction.
func (sub *submitter) SubmitTx(ctx context.Context, tx pgx.Tx, w *work.Submission) (work.Submitted, error) {
	n, err := sub.newRow(ctx, tx, w)
	if err != nil {
		return work.Submitted{}, sub.Commands.Explain(err)
	}
	ctx, span := sub.Tracing.StartSubmission(ctx, w.Kind, n.Lane, 1)
	n.Trace = telemetry.Traceparent(span)
	s, err := sub.submitFresh(ctx, tx, w, &n, !sub.NotificationsDisabled())
	telemetry.EndSubmission(span, s.ID, err)
	if sub.Commands.IDTaken(err) {
		sub.Commands.DropIDs() // makes the caller's next transaction use other ids
	}
	if err != nil {
		store.CloseStale(tx.Conn(), err, false)
		return work.Submitted{}, err
	}
	if !s.Duplicate {
		return s, nil
	}
	held, err := view.JobIn(ctx, sub.Commands, tx, s.ID)
	if errors.Is(err, job.ErrNotFound) { // the job was deleted, or this transaction's snapshot is older than the job
		return s, nil
	}
	if err != nil {
		return work.Submitted{}, err
	}
	s.PipelineID, s.State = held.PipelineID, held.State
	return s, nil
}
