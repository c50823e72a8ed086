package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// reportOf decodes a report. If its outcome cannot be stored, the job fails. The engine validates everything else.
func reportOf(m *remotepb.ReportResultRequest) (r host.Report, err error) {
	switch is := m.GetOutcome().(type) {
	case *remotepb.ReportResultRequest_Done:
		r.Outcome, err = done(is.Done)
		r.Err = job.Permanent(err)
	case *remotepb.ReportResultRequest_FanOut:
		if parts := is.FanOut.GetParts(); parts < 0 {
			return r, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("invalid: %d parts", parts))
		}
		r.Outcome, err = fanOut(is.FanOut)
		r.Err = job.Permanent(err)
	case *remotepb.ReportResultRequest_Snooze:
		later := is.Snooze
		r.Outcome = &work.Outcome{Status: job.OK, Snooze: &work.Snooze{Wait: later.GetWait().AsDuration(), Backoff: later.GetBackoff(), Why: later.GetWhy()}}
	case *remotepb.ReportResultRequest_Failure:
		r.Err = failure(is.Failure)
		r.Class, r.Code = job.ErrorClass(is.Failure.GetErrorClass()), is.Failure.GetErrorCode()
	case *remotepb.ReportResultRequest_HandedBack:
		r.HandedBack, r.Why = true, is.HandedBack.GetWhy()
	default:
		return r, connect.NewError(connect.CodeInvalidArgument, errors.New("invalid: the report has no outcome"))
	}
	return r, nil
}

func done(m *remotepb.Done) (*work.Outcome, error) {
	o, err := outcome(m.GetResult(), m.GetWarning())
	if err == nil && m.GetThen() != nil {
		o.Next, err = submission(m.GetThen())
	}
	if err == nil {
		o.EndChain = m.GetEndChain()
		o.Undo, err = steps(m.GetUndo())
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

func fanOut(m *remotepb.FanOut) (*work.Outcome, error) {
	o, err := outcome(m.GetResult(), m.GetWarning())
	if err != nil {
		return nil, err
	}
	o.Fan = &work.FanOut{Children: make([]*work.Submission, len(m.GetChildren())), Parts: int(m.GetParts()), FailFast: m.GetFailFast()}
	for i, child := range m.GetChildren() {
		if o.Fan.Children[i], err = submission(cmp.Or(child, &remotepb.Step{})); err != nil { // a step without a kind is rejected
			return nil, fmt.Errorf("child %d: %w", i+1, err)
		}
	}
	o.EndChain = m.GetEndChain()
	if o.Undo, err = steps(m.GetUndo()); err != nil {
		return nil, err
	}
	if m.GetJoin() == nil {
		return o, nil
	}
	join, err := submission(m.GetJoin())
	if err == nil {
		o.Fan.Join, err = join.Steps()
	}
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return o, nil
}

// outcome returns a successful outcome. If result is empty, the outcome has no result.
func outcome(result []byte, warning bool) (o *work.Outcome, err error) {
	o = &work.Outcome{Status: job.OK}
	if warning {
		o.Status = job.Warning
	}
	if len(result) > 0 {
		o.Result, err = work.EncodeResult(json.RawMessage(result))
	}
	return o, err
}

// submission decodes a step and the steps that follow it, up to the maximum nesting depth of a message.
func submission(m *remotepb.Step) (*work.Submission, error) {
	w := &work.Submission{Kind: m.GetKind(), Subject: m.Subject, Key: m.Key, Lane: m.GetLane(), Delay: m.GetDelay().AsDuration(), AllowUnregistered: m.GetAllowUnregistered(), When: job.When(m.GetWhen())}
	var err error
	if w.Args, err = work.EncodeRawArgs(w.Kind, m.GetArgs()); err != nil {
		return nil, err
	}
	if m.Priority != nil {
		w.Priority = number(m.GetPriority())
	}
	if m.GetMaxAttempts() != 0 {
		w.MaxAttempts = number(m.GetMaxAttempts())
	}
	if m.GetUniqueKey() != "" {
		w.UniqueKey, w.UniqueWhile = &m.UniqueKey, &m.UniqueWhile
	}
	w.Planned, err = steps(m.GetRest())
	return w, err
}

// steps decodes planned steps, each with the steps that follow it.
func steps(list []*remotepb.Step) (all []work.Step, err error) {
	for _, m := range list {
		w, err := submission(m)
		if err != nil {
			return nil, err
		}
		more, err := w.Steps()
		if err != nil {
			return nil, err
		}
		more[0].Own = m.GetOwn()
		all = append(all, more...)
	}
	return all, nil
}

func number(n int32) *int {
	wide := int(n)
	return &wide
}

// failure returns the error that a handler on the worker returned, including the retry behavior that the handler requested.
func failure(f *remotepb.Failure) error {
	err := error(handlersError(f.GetMessage()))
	if f.GetInvalidArgs() {
		err = invalidArgs{err}
	}
	switch {
	case f.GetPermanent():
		return job.Permanent(err)
	case f.RetryAfter != nil:
		return job.RetryAfter(f.GetRetryAfter().AsDuration(), err)
	case f.GetRetryable():
		return job.Retryable(err)
	}
	return err
}

type handlersError string

func (e handlersError) Error() string {
	if e == "" {
		return "the handler returned an error without a message"
	}
	return string(e)
}

// invalidArgs means that a handler could not decode its arguments.
type invalidArgs struct{ error }

func (invalidArgs) Is(target error) bool { return target == job.ErrInvalidArgs }
