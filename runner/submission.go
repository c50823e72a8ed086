package runner

import (
	"fmt"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Submitted is the result of a submission.
type Submitted struct {
	ID         int64 // the job's id
	PipelineID int64
	State      job.State // empty in middleware around EnqueueMany or EnqueueManyTx, where jobs are pending or awaiting approval
	Duplicate  bool      // the job was created by an earlier submission with the same unique or idempotency key
	Replaced   bool      // the job, a duplicate, waits and takes this submission's args; see [UniqueOption.Replace]
}

// submission is the job that an [EnqueueOption] modifies.
type submission struct {
	work.Submission
	failure FailureOption
	schema  string // for [EnqueueSQL]
	wrong   error  // an error in the options
}

// encodeSubmission encodes a job and its chain's steps. The engine performs all other checks.
func encodeSubmission(args job.Args, options []EnqueueOption) (*work.Submission, error) {
	switch a := args.(type) {
	case nil:
		return nil, fmt.Errorf("%w: submit: no args", job.ErrInvalidArgs)
	case withOptions:
		return encodeSubmission(a.args, append(a.options[:len(a.options):len(a.options)], options...))
	case chain:
		w, err := encodeSubmission(a.first, options)
		for i := 0; i < len(a.rest) && err == nil; i++ {
			var next *work.Submission
			if next, err = encodeSubmission(a.rest[i], nil); err == nil {
				err = w.Then(next)
			}
		}
		return w, err
	}
	w := &submission{}
	w.Kind = args.Kind()
	for i, o := range options {
		if o == nil {
			return nil, fmt.Errorf("%w: option %d is nil (kind %s)", job.ErrInvalid, i+1, w.Kind)
		}
		o.enqueue(w)
	}
	if w.schema != "" {
		return nil, fmt.Errorf("%w: InSchema: a runner knows its schema (kind %s)", job.ErrInvalid, w.Kind)
	}
	if w.wrong != nil {
		return nil, fmt.Errorf("%w (kind %s)", w.wrong, w.Kind)
	}
	var err error
	if w.Args, err = work.EncodeArgs(w.Kind, args); err == nil {
		err = w.failure.plan(&w.Submission)
	}
	return &w.Submission, err
}

// encodeOutcome encodes a handler's return value. If encoding fails or an encoder panics, the job fails for good.
func encodeOutcome(o *Outcome) (_ *work.Outcome, err error) {
	defer func() { err = job.Permanent(err) }()
	defer routine.Recover(&err)
	if o == nil {
		return nil, nil
	}
	if o.wrong != nil {
		return nil, o.wrong
	}
	w := &work.Outcome{Status: o.status, Writes: o.writes, Snooze: o.snooze, EndChain: o.endChain}
	for _, f := range o.undo {
		steps, err := f.steps()
		if err != nil {
			return nil, err
		}
		w.Undo = append(steps, w.Undo...) // latest first
	}
	if o.snooze == nil { // a snoozed job has no result yet
		if w.Result, err = work.EncodeResult(o.result); err != nil {
			return nil, err
		}
	}
	if o.next != nil {
		if w.Next, err = encodeSubmission(o.next, o.options); err != nil {
			return nil, err
		}
	}
	if o.fan != nil {
		w.Fan, err = o.fan.encode()
	}
	return w, err
}

func (f *fan) encode() (*work.FanOut, error) {
	w := &work.FanOut{Children: make([]*work.Submission, len(f.children)), Parts: f.parts, FailFast: f.failFast}
	var err error
	for i, child := range f.children {
		if w.Children[i], err = encodeSubmission(child, nil); err != nil {
			return nil, fmt.Errorf("child %d: %w", i+1, err)
		}
	}
	if f.join == nil {
		return w, nil
	}
	join, err := encodeSubmission(f.join, nil)
	if err == nil {
		w.Join, err = join.Steps()
	}
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return w, nil
}
