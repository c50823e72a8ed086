package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// ErrNoDatabase is returned by operations that need the database in a program without one, such as a remote worker.
var ErrNoDatabase = errors.New("a remote worker has no database")

// Assignment is a claim whose handler runs in a program without a database, such as a remote worker.
type Assignment struct {
	store.Claimed
	AttemptLimit int            // maximum number of attempts that may fail with a handler error, including the kind's default
	Token        []byte         // proves that the job was assigned to the worker
	Deadline     time.Time      // zero if there is none
	Goroutine    *atomic.Uint64 // receives the number of the handler's goroutine; nil if no caller needs it
}

// RemoteKind is a kind that a remote worker runs. Where a field is nil or 0, the pod's value applies. RemoteKind is stored as JSON in the
// worker's row, so that pods other than the one serving the worker's stream can settle its jobs.
type RemoteKind struct {
	Name                    string         `json:"name"`
	Timeout                 *time.Duration `json:"timeout,omitempty"`
	MaxAttempts             int            `json:"max_attempts,omitempty"`
	MaxCrashes              int            `json:"max_crashes,omitempty"`
	Backoff                 *job.Backoff   `json:"backoff,omitempty"`
	InactivityTimeout       *time.Duration `json:"inactivity_timeout,omitempty"`
	ContinueWithoutDatabase bool           `json:"-"` // whether handlers keep running while no pod responds; used by the worker only
}

// RemoteKinds returns the kinds that have a handler in e, which a remote worker sends to its pod.
func RemoteKinds(e *Engine) (list []RemoteKind) {
	for _, name := range slices.Sorted(maps.Keys(e.Kinds)) {
		k := e.Kinds[name]
		kind := RemoteKind{Name: name, MaxAttempts: k.MaxAttempts, MaxCrashes: k.MaxCrashes, InactivityTimeout: k.InactivityTimeout, ContinueWithoutDatabase: k.ContinueWithoutDatabase}
		if k.Timeout > 0 {
			kind.Timeout = &k.Timeout
		}
		if k.MaxAttempts > 0 {
			kind.Backoff = &k.Backoff // Retry sets both
		}
		list = append(list, kind)
	}
	return list
}

// Perform calls an assignment's handler in a remote worker, and checks and returns its outcome. e holds the worker's kinds, podID is the
// worker's id, and w receives the handler's writes.
func Perform(ctx context.Context, e *Engine, podID string, a Assignment, w work.Writer) (o *work.Outcome, err error) {
	k := e.Kinds[a.Kind]
	if k == nil {
		return nil, fmt.Errorf("%w: run %q", job.ErrUnknownKind, a.Kind)
	}
	if !a.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, a.Deadline, job.ErrTimeout)
		defer cancel()
	}
	j := &work.Job{Pod: e.Opts.Name, Writer: w, MaxAttempts: a.AttemptLimit, Lease: job.Lease{JobID: a.ID, Fence: a.Fence, Pod: podID}, Claimed: &a.Claimed}
	err = routine.Call(func() (err error) {
		if a.Goroutine != nil {
			a.Goroutine.Store(routine.Goroutine())
			defer a.Goroutine.Store(0)
		}
		o, err = k.Run(ctx, j)
		if err != nil {
			err = work.ReadError(err) // a panic in the error's methods is attributed to the handler
		}
		return err
	})
	if err == nil && o != nil {
		err = job.Permanent(e.checkRemote(o))
	}
	return o, err
}

// checkRemote rejects an outcome that no pod would accept from a remote worker.
func (e *Engine) checkRemote(o *work.Outcome) error {
	if len(o.Writes) > 0 {
		return fmt.Errorf("write in the commit that ends the job: %w", ErrNoDatabase)
	}
	return e.CheckOutcome(o)
}

// CheckOutcome rejects an outcome whose next step, children, join or failure steps could not be submitted.
func (e *Engine) CheckOutcome(o *work.Outcome) error {
	if err := e.CheckSteps(o.Undo, false); err != nil {
		return fmt.Errorf("on failure: %w", err)
	}
	if o.Next != nil {
		if err := e.CheckFollowing("next step", o.Next); err != nil {
			return err
		}
	}
	if o.Fan == nil {
		return nil
	}
	for i, child := range o.Fan.Children {
		if err := e.CheckFollowing("child", child); err != nil {
			return fmt.Errorf("child %d: %w", i+1, err)
		}
	}
	if len(o.Fan.Join) == 0 {
		return nil
	}
	return e.CheckSteps(o.Fan.Join, false)
}
