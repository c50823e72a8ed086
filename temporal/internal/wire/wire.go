// Package wire defines what Temporal stores about a job: [Run], the input of its workflow and activity; [Details], the details in the
// activity's heartbeats; and [Verdict], the activity's result. All of them are JSON and can be encrypted by the client's data converter.
//
// Values written by an older release must stay readable, because workflows outlive deployments. Only add fields.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// MaxBytes is the maximum size of a run, of heartbeat details and of a verdict. By default, a Temporal server rejects values above 2 MB.
const MaxBytes = 1_500_000

// Run is one epoch of a job, during which its handler is called until it returns.
type Run struct {
	ID          int64           `json:"id"`
	Epoch       int64           `json:"epoch"`
	Kind        string          `json:"kind"`
	Lane        string          `json:"lane"`
	Subject     string          `json:"subject,omitempty"`
	Key         string          `json:"key,omitempty"`
	Args        json.RawMessage `json:"args"`
	PipelineID  int64           `json:"pipeline"`
	ParentID    *int64          `json:"parent,omitempty"`
	GroupID     *int64          `json:"group,omitempty"`
	ChildNo     *int32          `json:"child_no,omitempty"`
	Step        int             `json:"step,omitempty"`
	Priority    int             `json:"priority,omitempty"`
	Attempt     int             `json:"attempt"`
	MaxAttempts *int            `json:"max_attempts,omitempty"`
	Crashes     int             `json:"crashes,omitempty"`
	MaxCrashes  *int            `json:"max_crashes,omitempty"`
	Snoozes     int             `json:"snoozes,omitempty"`
	Submitter   string          `json:"submitter,omitempty"`
	Trace       string          `json:"trace,omitempty"`
	Ordered     bool            `json:"ordered,omitempty"`
	Checkpoint  json.RawMessage `json:"checkpoint,omitempty"` // from an earlier epoch
	CreatedAt   time.Time       `json:"created_at"`
	ClaimedAt   time.Time       `json:"claimed_at"`
	// Heartbeat is the time without a heartbeat after which a worker counts as dead.
	Heartbeat time.Duration `json:"heartbeat"`
	// Database identifies the database that the job belongs to (see [outbox.Outbox.Database]).
	Database string `json:"database,omitempty"`
	// Run is the run id that was recorded at the start of the epoch. It is not part of the workflow's input.
	Run string `json:"run,omitempty"`
	// Pods is the task queue that all pods serve.
	Pods string `json:"pods"`
}

// RunOf returns the run for an outbox item.
func RunOf(i outbox.Item, heartbeat time.Duration) Run {
	return Run{
		ID: i.ID, Epoch: i.Epoch(), Kind: i.Kind, Lane: i.Lane, Subject: i.Subject, Key: i.Key, Args: i.Args, PipelineID: i.PipelineID, ParentID: i.ParentID,
		GroupID: i.Group, ChildNo: i.No, Step: i.Step, Priority: i.Priority, Attempt: i.Attempts + 1, MaxAttempts: i.MaxAttempts,
		Crashes: i.Crashes, MaxCrashes: i.MaxCrashes, Snoozes: i.Snoozes, Submitter: i.Submitter, Trace: i.Trace, Ordered: i.Ordered, Checkpoint: i.Checkpoint,
		CreatedAt: i.CreatedAt, ClaimedAt: i.ClaimedAt, Heartbeat: heartbeat,
	}
}

// Slim returns the run without its large values.
func (r Run) Slim() Run {
	r.Args, r.Checkpoint = nil, nil
	return r
}

// Claimed returns the run as a claim, without a fence.
func (r *Run) Claimed() *store.Claimed {
	return &store.Claimed{
		ID: r.ID, Lane: r.Lane, Priority: r.Priority, Attempt: r.Attempt, Crashes: r.Crashes, Snoozes: r.Snoozes, Checkpoint: r.Checkpoint,
		ClaimedAt: r.ClaimedAt, Path: "poll", Definition: store.Definition{
			Kind: r.Kind, Subject: r.Subject, Key: r.Key, Args: r.Args, PipelineID: r.PipelineID, ParentID: r.ParentID, Step: r.Step,
			Branch: store.Branch{Group: r.GroupID, No: r.ChildNo}, MaxAttempts: r.MaxAttempts, MaxCrashes: r.MaxCrashes, Submitter: r.Submitter,
			Trace: r.Trace, Ordered: r.Ordered, CreatedAt: r.CreatedAt,
		},
	}
}

// TooLarge returns the error for a value that Temporal would reject, or nil.
func TooLarge(what string, bytes int) error {
	if bytes <= MaxBytes {
		return nil
	}
	return job.Permanent(fmt.Errorf("%w: %s of %d bytes in a lane of Temporal, at most %d: store it elsewhere and pass a reference, or set the lane's engine to %s",
		job.ErrTooLarge, what, bytes, MaxBytes, job.EnginePostgreSQL))
}

// Details are stored by Temporal with each heartbeat of the activity. After a crash, they are passed to the next call.
type Details struct {
	Starts     int              `json:"starts"` // handler calls since the latest checkpoint that have not returned
	Checkpoint json.RawMessage  `json:"checkpoint,omitempty"`
	Progress   job.Progress     `json:"progress,omitzero"`
	Events     []store.Emission `json:"events,omitempty"`
	Attempt    int              `json:"attempt,omitempty"`  // the highest call number so far
	Forgiven   bool             `json:"forgiven,omitempty"` // the run has stored a checkpoint, so crashes of earlier runs no longer count
}

// Verdict is the result of the activity: the handler's return value, and the checkpoint, progress and events that it recorded.
type Verdict struct {
	Outcome *work.Outcome `json:"outcome,omitempty"` // nil if the handler failed, or succeeded without a result
	Failure *Failure      `json:"failure,omitempty"`
	Cause   string        `json:"cause,omitempty"`   // why the handler's context was cancelled; see causes
	Crashed string        `json:"crashed,omitempty"` // why the job reached its crash limit; the handler was not called again
	Lost    string        `json:"lost,omitempty"`    // why the activity has no result although its handler may have run
	Took    time.Duration `json:"took"`
	Began   time.Time     `json:"began,omitzero"`
	Details Details       `json:"details,omitzero"`
}

// Failure is a handler's error.
type Failure struct {
	Message     string         `json:"message"`
	Class       job.ErrorClass `json:"class"`
	Code        string         `json:"code,omitempty"`
	Permanent   bool           `json:"permanent,omitempty"`
	Retry       bool           `json:"retry,omitempty"`
	After       *time.Duration `json:"after,omitempty"`
	InvalidArgs bool           `json:"invalid_args,omitempty"`
	TooLarge    bool           `json:"too_large,omitempty"`
}

// FailureOf encodes a handler's error.
func FailureOf(err error) *Failure {
	wish := job.WishOf(err)
	class, code := work.ErrorOf(err)
	return &Failure{Message: job.Storable(err.Error(), job.MaxErrorBytes), Class: class, Code: code, Permanent: wish.Permanent, Retry: wish.Retry,
		After: wish.After, InvalidArgs: errors.Is(err, job.ErrInvalidArgs), TooLarge: errors.Is(err, job.ErrTooLarge)}
}

// Err returns the handler's error, including the retry behavior that it requested, or nil.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	err := error(handlersError{f})
	switch {
	case f.Permanent:
		err = job.Permanent(err)
	case f.After != nil:
		err = job.RetryAfter(*f.After, err)
	case f.Retry:
		err = job.Retryable(err)
	}
	return work.ReportedError(err, f.Class, f.Code)
}

// handlersError is a handler's error reduced to its text and class.
type handlersError struct{ f *Failure }

func (e handlersError) Error() string { return e.f.Message }

func (e handlersError) Is(target error) bool {
	return target == job.ErrInvalidArgs && e.f.InvalidArgs || target == job.ErrTooLarge && e.f.TooLarge
}

// causes are the reasons for cancelling a handler's context after which its outcome still counts.
var causes = map[string]error{"cancelled": job.ErrCancelled, "timeout": job.ErrTimeout, "inactive": job.ErrInactive}

// CauseOf encodes the cause of a cancelled context.
func CauseOf(err error) string {
	for name, cause := range causes {
		if errors.Is(err, cause) {
			return name
		}
	}
	return ""
}

// CauseErr decodes the cause of a cancelled context.
func (v *Verdict) CauseErr() error { return causes[v.Cause] }

// AllowUnregistered allows all steps in the outcome to be of unregistered kinds, because the worker has already checked their kinds.
func (v *Verdict) AllowUnregistered() {
	o := v.Outcome
	if o == nil {
		return
	}
	foreign(o.Next)
	steps(o.Undo)
	if o.Fan != nil {
		for _, child := range o.Fan.Children {
			foreign(child)
		}
		steps(o.Fan.Join)
	}
}

func foreign(w *work.Submission) {
	if w != nil {
		w.AllowUnregistered = true
		steps(w.Planned)
	}
}

func steps(list []work.Step) {
	for i := range list {
		list[i].AllowUnregistered = true
	}
}
