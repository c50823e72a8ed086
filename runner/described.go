package runner

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/job"
)

// Described is an [Outcome] in plain values, as it goes over a wire.
type Described struct {
	Result  json.RawMessage // nil: none
	Warning bool
	Then    *DescribedStep // nil: none

	Fan      bool // Children or Parts, until which the job waits
	Children []DescribedStep
	Parts    int
	FailFast bool
	Join     *DescribedStep // nil: none

	Later *time.Duration // nil: it has a verdict
	Why   string
}

// DescribedStep is a step that follows, or a child.
type DescribedStep struct {
	Kind        string
	Args        json.RawMessage
	Subject     *string
	Lane        string
	Priority    *int
	Delay       time.Duration
	MaxAttempts int
	UniqueKey   string
	UniqueWhile UniqueWhile
	Foreign     bool
	Rest        []DescribedStep
}

// Describe puts an outcome into plain values. Errors are the handler's: what cannot be encoded, kinds that nobody here knows, and
// writes into a database that is not there.
func (r *Runner) Describe(o *Outcome) (d Described, err error) {
	defer guard.Recover(&err)
	if o == nil {
		return d, nil
	}
	if o.inTx != nil {
		return d, fmt.Errorf("write in the commit that ends the job: %w", ErrNoDatabase)
	}
	d.Warning, d.Later, d.Why = o.quality == job.Warning, o.later, o.why
	if d.Result, err = o.encodeResult(); err != nil {
		return d, err
	}
	if o.next != nil {
		if d.Then, err = r.describe(o.next, o.options); err != nil {
			return d, fmt.Errorf("next step: %w", err)
		}
	}
	if o.fan == nil {
		return d, nil
	}
	d.Fan, d.Parts, d.FailFast = true, o.fan.parts, o.fan.failFast
	for i, child := range o.fan.children {
		one, err := r.describe(child, nil)
		if err != nil {
			return d, fmt.Errorf("child %d: %w", i+1, err)
		}
		d.Children = append(d.Children, *one)
	}
	if o.fan.join != nil {
		d.Join, err = r.describe(o.fan.join, nil)
	}
	return d, err
}

func (r *Runner) describe(args job.Args, options []EnqueueOption) (*DescribedStep, error) {
	w, err := r.newSubmission(args, options)
	if err != nil {
		return nil, err
	}
	s := &DescribedStep{Kind: w.kind, Args: w.args, Subject: w.subject, Lane: w.lane, Priority: w.priority, Delay: w.delay, Foreign: w.foreign}
	if w.maxAttempts != nil {
		s.MaxAttempts = *w.maxAttempts
	}
	if w.uniqueKey != nil {
		s.UniqueKey, s.UniqueWhile = *w.uniqueKey, UniqueWhile(*w.uniqueWhile)
	}
	for _, p := range w.planned {
		s.Rest = append(s.Rest, DescribedStep{Kind: p.Kind, Args: p.Args, Subject: p.Subject, Lane: p.Lane, Priority: p.Priority, Foreign: w.foreign})
	}
	return s, nil
}

// Outcome is what d describes.
func (d Described) Outcome() *Outcome {
	var o *Outcome
	switch {
	case d.Later != nil:
		return RetryLater(*d.Later, d.Why)
	case d.Fan:
		children := make([]job.Args, len(d.Children))
		for i := range d.Children {
			children[i] = d.Children[i].args()
		}
		o = &Outcome{quality: job.OK, fan: &fan{children: children, parts: max(d.Parts, 0), failFast: d.FailFast}}
		if d.Join != nil {
			o.Join(d.Join.args())
		}
	case d.Then != nil:
		o = Then(d.Then.args())
	default:
		o = Done(nil)
	}
	if d.Warning {
		o.Warning()
	}
	if len(d.Result) > 0 {
		o.Result(d.Result)
	}
	return o
}

func (s *DescribedStep) args() job.Args {
	rest := make([]job.Args, len(s.Rest))
	for i := range s.Rest {
		rest[i] = s.Rest[i].args()
	}
	options := []EnqueueOption{Lane(s.Lane), Delay(s.Delay)}
	if s.Subject != nil {
		options = append(options, Subject(*s.Subject))
	}
	if s.Priority != nil {
		options = append(options, Priority(*s.Priority))
	}
	if s.MaxAttempts != 0 {
		options = append(options, MaxAttempts(s.MaxAttempts))
	}
	if s.UniqueKey != "" {
		options = append(options, Unique(s.UniqueKey, s.UniqueWhile))
	}
	if s.Foreign {
		options = append(options, Foreign())
	}
	one := Step(Raw{Name: s.Kind, JSON: s.Args}, options...)
	if len(rest) == 0 {
		return one
	}
	return Chain(one, rest...)
}
