package runnertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// writer is a [work.Writer] without a database. It records the handler's writes.
type writer struct {
	id       int64
	token    string
	previous json.RawMessage
	failure  *job.Failure
	joins    bool
	branches []job.Branch

	mu          sync.Mutex
	issued      bool // this attempt or an earlier one has asked for the token
	closed      bool // the handler has returned
	progress    []job.Progress
	events      []job.Event
	checkpoints []json.RawMessage
	batches     []Batch
}

var errNoDatabase = errors.New("Job.Tx needs a database, and runnertest.Call has none: test this handler with runnertest.New, " +
	"or have it write with Job.Write or Outcome.InTx, which Call records")

// Tx implements [work.Writer].
func (w *writer) Tx(context.Context, work.TxFunc, func() (json.RawMessage, error)) error {
	return job.Permanent(errNoDatabase)
}

// Write implements [work.Writer].
func (w *writer) Write(ctx context.Context, writes work.Writes, checkpoint json.RawMessage) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return job.ErrLeaseLost
	}
	w.batches = append(w.batches, Batch{statements(writes), checkpoint})
	if checkpoint != nil {
		w.checkpoints = append(w.checkpoints, checkpoint)
	}
	return nil
}

// Progress implements [work.Writer].
func (w *writer) Progress(p job.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.progress = append(w.progress, p)
	}
}

// Emit implements [work.Writer].
func (w *writer) Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	orElse(&level, "info")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return job.ErrLeaseLost
	}
	no := len(w.events) + 1
	w.events = append(w.events, job.Event{Job: &w.id, EventNo: &no, At: time.Now(), Level: level, Event: event, Message: &message, Fields: fields})
	return nil
}

// Checkpoint implements [work.Writer].
func (w *writer) Checkpoint(ctx context.Context, v json.RawMessage) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return job.ErrLeaseLost
	}
	w.checkpoints = append(w.checkpoints, v)
	return nil
}

// PreviousResult implements [work.Writer].
func (w *writer) PreviousResult(context.Context) (json.RawMessage, error) {
	if w.previous == nil {
		return nil, fmt.Errorf("read the result of the job before job %d: %w: give Call a Claim with PreviousResult", w.id, job.ErrNotFound)
	}
	return w.previous, nil
}

// Failure implements [work.Writer].
func (w *writer) Failure(context.Context) (job.Failure, error) {
	if w.failure == nil {
		return job.Failure{}, fmt.Errorf("read the failure that job %d follows: %w: give Call a Claim with Failure", w.id, job.ErrNotFound)
	}
	return *w.failure, nil
}

// Branches implements [work.Writer].
func (w *writer) Branches(context.Context) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) {
		if !w.joins {
			yield(job.Branch{}, fmt.Errorf("read the children that job %d joins: %w: give Call a Claim with Branches", w.id, job.ErrNotFound))
			return
		}
		for _, b := range w.branches {
			if !yield(b, nil) {
				return
			}
		}
	}
}

// CompletionToken implements [work.Writer].
func (w *writer) CompletionToken(context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.issued = true
	return w.token, nil
}

// hasToken reports whether the parts of the job can be completed.
func (w *writer) hasToken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.issued
}
