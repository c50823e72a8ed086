package worker

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// fill sets a report's fields from the handler's return values.
func (t *task) fill(m *remotepb.ReportResultRequest, o *work.Outcome, err error) {
	why := context.Cause(t.ctx)
	switch {
	case err != nil && (errors.Is(why, job.ErrShutdown) || errors.Is(why, job.ErrLeaseLost)):
		m.Outcome = &remotepb.ReportResultRequest_HandedBack{HandedBack: &remotepb.HandedBack{Why: why.Error()}}
	case err != nil:
		m.Outcome = &remotepb.ReportResultRequest_Failure{Failure: failure(err)}
	case o == nil:
		m.Outcome = &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{}}
	case o.Snooze != nil:
		m.Outcome = &remotepb.ReportResultRequest_Snooze{Snooze: &remotepb.Snooze{Wait: durationpb.New(o.Snooze.Wait), Backoff: o.Snooze.Backoff, Why: cut(o.Snooze.Why)}}
	case o.Fan != nil:
		f := &remotepb.FanOut{Parts: int32(o.Fan.Parts), FailFast: o.Fan.FailFast, Result: o.Result, Warning: o.Status == job.Warning} // #nosec G115 -- the pod rejects more than 10,000
		for _, child := range o.Fan.Children {
			f.Children = append(f.Children, submission(child))
		}
		if join := planned(o.Fan.Join); len(join) > 0 {
			f.Join = join[0]
			f.Join.Rest = join[1:]
		}
		f.EndChain, f.Undo = o.EndChain, planned(o.Undo)
		m.Outcome = &remotepb.ReportResultRequest_FanOut{FanOut: f}
	default:
		d := &remotepb.Done{Result: o.Result, Warning: o.Status == job.Warning, EndChain: o.EndChain, Undo: planned(o.Undo)}
		if o.Next != nil {
			d.Then = submission(o.Next)
		}
		m.Outcome = &remotepb.ReportResultRequest_Done{Done: d}
	}
}

// submission converts the next step or a child to its wire form.
func submission(w *work.Submission) *remotepb.Step {
	m := step(work.Step{Step: job.Step{Kind: w.Kind, Args: w.Args, Subject: w.Subject, Lane: w.Lane, Priority: w.Priority}, Foreign: w.Foreign})
	if w.MaxAttempts != nil {
		m.MaxAttempts = int32(min(*w.MaxAttempts, 1<<30)) // #nosec G115 -- bounded here
	}
	if w.UniqueKey != nil {
		m.UniqueKey, m.UniqueWhile = *w.UniqueKey, *w.UniqueWhile
	}
	if w.Delay > 0 {
		m.Delay = durationpb.New(w.Delay)
	}
	m.Rest = planned(w.Planned)
	return m
}

func planned(steps []work.Step) (list []*remotepb.Step) {
	for _, s := range steps {
		list = append(list, step(s))
	}
	return list
}

func step(s work.Step) *remotepb.Step {
	m := &remotepb.Step{Kind: s.Kind, Args: s.Args, Subject: s.Subject, Lane: s.Lane, Foreign: s.Foreign, When: string(s.When), Own: s.Own}
	if s.Priority != nil {
		priority := int32(*s.Priority) // #nosec G115 -- −100 to 100
		m.Priority = &priority
	}
	return m
}

func failure(err error) *remotepb.Failure {
	wish := job.WishOf(err)
	class, code := work.ErrorOf(err)
	f := &remotepb.Failure{ErrorClass: string(class), ErrorCode: code, Message: cut(err.Error()), Permanent: wish.Permanent, Retryable: wish.Retry, InvalidArgs: errors.Is(err, job.ErrInvalidArgs)}
	if wish.After != nil {
		f.RetryAfter = durationpb.New(*wish.After)
	}
	return f
}

// cut truncates a message to the length that a pod stores. It also makes the message valid UTF-8, as the wire format requires.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), job.MaxErrorBytes)], "�")
}
