package runner

import (
	"fmt"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// submission is the form of a job that [EnqueueOption] sets.
type submission struct {
	work.Submission
	wrong error // a mistake in the options
}

// encodeSubmission encodes a job and the steps of its chain. The engine checks the rest.
func encodeSubmission(args job.Args, options []EnqueueOption) (*work.Submission, error) {
	switch a := args.(type) {
	case nil:
		return nil, fmt.Errorf("%w: submit: no args", job.ErrInvalidArgs)
	case step:
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
	for _, o := range options {
		o(w)
	}
	if w.wrong != nil {
		return nil, fmt.Errorf("%w (kind %s)", w.wrong, w.Kind)
	}
	var err error
	w.Args, err = work.EncodeArgs(w.Kind, args)
	return &w.Submission, err
}

// encodeOutcome encodes the return of a handler. An error, or a panic of the handler's types, fails the job for good.
func encodeOutcome(o *Outcome) (_ *work.Outcome, err error) {
	defer func() { err = job.Permanent(err) }()
	defer guard.Recover(&err)
	if o == nil {
		return nil, nil
	}
	if o.wrong != nil {
		return nil, o.wrong
	}
	w := &work.Outcome{Status: o.status, InTx: o.inTx, Snooze: o.snooze}
	if o.snooze == nil { // else the job has no result yet
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
