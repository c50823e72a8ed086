// Package work defines the forms in which jobs pass between programs and the engine: a [Submission] is a job to submit, a [Job] is passed
// to the handler, and an [Outcome] is returned by it. Their values are encoded, limited in size, and free of application types. Package
// runner creates them from an application's values, and the packages for remote workers create them from network messages. The engine works
// only with these forms.
package work

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// Submission is a job to insert: a job submitted by a program, the next step of a pipeline, or a child of a fan-out.
type Submission struct {
	Kind              string
	Args              json.RawMessage `json:",omitempty"` // encoded by [EncodeArgs]
	Planned           []Step          `json:",omitempty"` // the steps planned after the job
	Plan              json.RawMessage `json:",omitempty"` // Planned, encoded by EncodePlan
	Subject           *string         `json:",omitempty"`
	Key               *string         `json:",omitempty"` // nil: the key of the job before it; empty: none
	Lane              string          `json:",omitempty"` // empty means the kind's lane
	Priority          *int            `json:",omitempty"`
	Delay             time.Duration   `json:",omitempty"`
	MaxAttempts       *int            `json:",omitempty"` // nil means the kind's limit
	KindAttempts      map[string]int  `json:",omitempty"` // limits by kind where none is set; see [Submission.LimitAttempts]
	MaxCrashes        *int            `json:",omitempty"` // the kind's limit, if this program knows the kind
	UniqueKey         *string         `json:",omitempty"`
	UniqueWhile       *string         `json:",omitempty"` // WhilePending or WhileActive
	Replace           bool            `json:",omitempty"` // the job that waits with the unique key takes the args
	Debounce          time.Duration   `json:",omitempty"` // implies Replace: the job becomes due so long after the latest submission
	DebounceMax       time.Duration   `json:",omitempty"` // and at the latest so long after the first one
	Throttle          time.Duration   `json:",omitempty"` // implies Replace: the job starts no earlier than so long after the last one of the key
	IdempotencyKey    string          `json:",omitempty"`
	Submitter         string          `json:",omitempty"`
	AllowUnregistered bool            `json:",omitempty"` // the program need not know the job's kind or the kinds of the next steps
	Pipeline          string          `json:",omitempty"`
	Approval          bool            `json:",omitempty"`
	StartBy           time.Duration   `json:",omitempty"` // the time within which it must start; 0 means no limit
	Ordered           bool            `json:",omitempty"` // keeps its subject while it waits for a retry; inherited by the next steps
	When              job.When        `json:",omitempty"` // set for a join that runs even if branches fail; otherwise empty
	// Emitted is set for a step that a handler returned. An emitted step needs approval if it enters a lane that requires approval. A step
	// planned on submission does not, because its pipeline's approval covers it.
	Emitted   bool `json:",omitempty"`
	Unlimited bool `json:",omitempty"` // a failure step: the start limits of its kind and lane do not apply
}

// The values of Submission.UniqueWhile: a key is held until the job starts, or until it ends.
const (
	WhilePending = string(job.WhilePending)
	WhileActive  = string(job.WhileActive)
)

// Step is a planned step that has not been stored yet.
type Step struct {
	job.Step
	AllowUnregistered bool `json:"-"`                   // this program need not know the step's kind
	Emitted           bool `json:"emitted,omitempty"`   // a handler returned the step; see [Submission.Emitted]
	Unlimited         bool `json:"unlimited,omitempty"` // see [Submission.Unlimited]
	// MaxAttempts is the limit set by the submission. Nil means the kind's limit.
	MaxAttempts *int `json:"max_attempts,omitempty"`
}

// MarkEmitted marks steps as returned by a handler.
func MarkEmitted(steps []Step) {
	for i := range steps {
		steps[i].Emitted = true
	}
}

// Submitted describes the job that was submitted, or the existing job of an earlier submission with the same key.
type Submitted struct {
	ID         int64
	PipelineID int64
	State      job.State
	Duplicate  bool
	Replaced   bool // the earlier job takes this submission's args
}

// Plan holds the steps planned after a job, grouped by the condition under which they run. Each group keeps its order.
type Plan struct {
	Own   []Step // run if the job itself fails
	Chain []Step // run after the job succeeds, each with separate failure steps
	Undo  []Step // run if the job or any step of the chain fails
}

// PlanOf groups planned steps by the condition under which they run.
func PlanOf(steps []Step) (p Plan) {
	for _, s := range steps {
		switch {
		case s.Follows(), s.Own && len(p.Chain) > 0:
			p.Chain = append(p.Chain, s)
		case s.Own:
			p.Own = append(p.Own, s)
		default:
			p.Undo = append(p.Undo, s)
		}
	}
	return p
}

// SetPriority sets all steps' priority.
func (p Plan) SetPriority(priority *int) {
	for _, steps := range [][]Step{p.Own, p.Chain, p.Undo} {
		for i := range steps {
			steps[i].Priority = priority
		}
	}
}

// FollowedBy returns the plan that remains after the job has succeeded with the given outcome.
func (p Plan) FollowedBy(o *Outcome) (chain, undo []Step) {
	if !o.EndChain {
		chain = p.Chain
	}
	return chain, append(slices.Clip(o.Undo), p.Undo...)
}

// FromPlan returns a submission for the first of several planned steps, with the remaining ones as its next steps.
func FromPlan(steps []Step) *Submission {
	s := steps[0]
	return &Submission{Kind: s.Kind, Args: s.Args, Lane: s.Lane, Subject: s.Subject, Key: s.Key, Priority: s.Priority, MaxAttempts: s.MaxAttempts, Planned: steps[1:], Emitted: s.Emitted, Unlimited: s.Unlimited}
}

// OnFailure inserts steps from [ForFailure] at the beginning of the plan. They run if the job itself fails.
func (w *Submission) OnFailure(steps []Step) {
	for i := range steps {
		steps[i].Own = true
	}
	w.Planned = append(steps, w.Planned...)
}

// ForFailure converts a submission and its next steps to a chain of steps that run after a job's failure. If one of them fails in turn,
// nothing follows.
func ForFailure(next *Submission, when job.When) ([]Step, error) {
	steps, err := next.Steps()
	if err != nil {
		return nil, err
	}
	for i := range steps {
		if steps[i].When != job.AfterSuccess {
			return nil, fmt.Errorf("%w: plan step %s on failure: a failure step cannot have its own failure step", job.ErrInvalid, next.Kind)
		}
		steps[i].When = when
	}
	return steps, nil
}

// Steps converts the submission and its next steps to steps planned after another job. It rejects options that do not apply to steps.
func (w *Submission) Steps() ([]Step, error) {
	if err := w.Validate(); err != nil {
		return nil, fmt.Errorf("%w (plan step %s)", err, w.Kind)
	}
	if w.Delay != 0 || w.MaxAttempts != nil || w.UniqueKey != nil || w.Replace || w.IdempotencyKey != "" || w.Pipeline != "" || w.Approval || w.StartBy != 0 || w.Ordered || w.Submitter != "" {
		return nil, fmt.Errorf("%w: plan step %s: a step accepts only a subject, a key, a lane and a priority", job.ErrInvalid, w.Kind)
	}
	s := job.Step{Kind: w.Kind, Args: w.Args, Lane: w.Lane, Subject: w.Subject, Key: w.Key, Priority: w.Priority, When: w.When}
	return append([]Step{{Step: s, AllowUnregistered: w.AllowUnregistered}}, w.Planned...), nil
}

// Then appends a step and its next steps to the plan.
func (w *Submission) Then(next *Submission) error {
	steps, err := next.Steps()
	if err == nil && next.When != job.AfterSuccess {
		err = fmt.Errorf("%w: plan step %s: Always is an option of a join", job.ErrInvalid, next.Kind)
	}
	w.Planned = append(w.Planned, steps...)
	return err
}

// LimitAttempts applies KindAttempts to the submission and to the next steps that run if every step succeeds.
func (w *Submission) LimitAttempts() {
	if limit, ok := w.KindAttempts[w.Kind]; ok && w.MaxAttempts == nil {
		w.MaxAttempts = &limit
	}
	for i := range w.Planned {
		s := &w.Planned[i]
		if limit, ok := w.KindAttempts[s.Kind]; ok && s.Follows() {
			s.MaxAttempts = &limit
		}
	}
}

// EncodePlan encodes the next steps into Plan.
func (w *Submission) EncodePlan() (err error) {
	w.Plan, err = EncodePlan(w.Kind, w.Planned)
	return err
}

// EncodePlan encodes a job's next steps, or returns nil if there are none. Errors mention the kind.
func EncodePlan(kind string, steps []Step) (json.RawMessage, error) {
	if len(steps) == 0 {
		return nil, nil
	}
	plan, err := text.JSON(steps)
	if err != nil {
		return nil, fmt.Errorf("%w: plan the steps after %s: %w", job.ErrInvalidArgs, kind, err)
	}
	return plan, nil
}

// DecodePlan decodes the steps planned after a job.
func DecodePlan(id int64, plan json.RawMessage) (Plan, error) {
	if plan == nil {
		return Plan{}, nil
	}
	var steps []Step
	if err := json.Unmarshal(plan, &steps); err != nil {
		return Plan{}, fmt.Errorf("decode the planned steps of job %d: %w", id, err)
	}
	return PlanOf(steps), nil
}

// Describe converts the submission to its public form.
func (w *Submission) Describe() job.Submission {
	s := job.Submission{
		Step:  job.Step{Kind: w.Kind, Args: w.Args, Lane: w.Lane, Subject: w.Subject, Key: w.Key, Priority: w.Priority, When: w.When},
		Delay: w.Delay, IdempotencyKey: w.IdempotencyKey, Submitter: w.Submitter, Pipeline: w.Pipeline, NeedsApproval: w.Approval, StartBy: w.StartBy, Ordered: w.Ordered, AllowUnregistered: w.AllowUnregistered,
		Then: Describe(w.Planned),
	}
	if w.MaxAttempts != nil {
		s.MaxAttempts = *w.MaxAttempts
	}
	if w.UniqueKey != nil {
		s.UniqueKey, s.UniqueWhile = *w.UniqueKey, job.UniqueWhile(*w.UniqueWhile)
		s.Replace, s.Debounce, s.DebounceMax, s.Throttle = w.Replace, w.Debounce, w.DebounceMax, w.Throttle
	}
	return s
}

// Describe converts planned steps to their public form.
func Describe(steps []Step) (list []job.Step) {
	for _, s := range steps {
		list = append(list, s.Step)
	}
	return list
}

var whens = []job.When{job.AfterSuccess, job.Always, job.OnFailure, job.OnFailureOrCancel}

// Validate reports all invalid options at once, each as a [job.ErrInvalid].
func (w *Submission) Validate() error {
	var errs []error
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{job.ErrInvalid}, args...)...))
		}
	}
	text := func(name string, s string, limit int) {
		if len(s) > limit {
			complain(false, "%s of %d bytes, at most %d", name, len(s), limit)
		}
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			complain(false, "%s is not valid text", name)
		}
	}
	if err := job.ValidateKind(w.Kind); err != nil {
		errs = append(errs, err)
	}
	text("lane", w.Lane, 100)
	text("submitter", w.Submitter, 200)
	text("pipeline", w.Pipeline, 200)
	text("idempotency key", w.IdempotencyKey, job.MaxKeyBytes)
	if w.Subject != nil {
		text("subject", *w.Subject, job.MaxSubjectBytes)
	}
	if w.Key != nil {
		text("key", *w.Key, job.MaxJobKeyBytes)
		complain(*w.Key != "*", "key \"*\", which stands for all keys in limits")
	}
	if w.UniqueKey != nil {
		text("unique key", *w.UniqueKey, job.MaxKeyBytes)
		complain(*w.UniqueKey != "", "empty unique key")
		complain(*w.UniqueWhile == WhilePending || *w.UniqueWhile == WhileActive, "unique while %q", *w.UniqueWhile)
	}
	if w.Replace {
		complain(w.UniqueKey != nil, "replace needs a unique key")
		complain(w.UniqueKey == nil || *w.UniqueWhile == WhilePending, "replace needs unique while pending: a running job does not see new args")
	}
	if w.Debounce != 0 || w.DebounceMax != 0 {
		complain(w.Debounce > 0, "debounce wait of %s, want more than 0", w.Debounce)
		complain(w.DebounceMax >= w.Debounce, "debounce max of %s, want at least its wait of %s", w.DebounceMax, w.Debounce)
		complain(w.Delay == 0, "debounce with a delay: the debounce wait is the delay")
	}
	if w.Throttle != 0 {
		complain(w.Throttle > 0, "throttle of %s, want more than 0", w.Throttle)
		complain(w.Delay == 0, "throttle with a delay: a throttled job is due as soon as its interval has passed")
		complain(w.Debounce == 0, "throttle with debounce: want one of them")
	}
	if w.Priority != nil {
		complain(*w.Priority >= job.MinPriority && *w.Priority <= job.MaxPriority, "priority %d, want %d to %d", *w.Priority, job.MinPriority, job.MaxPriority)
	}
	complain(w.StartBy >= 0, "start by %s is negative", w.StartBy)
	complain(w.StartBy <= 0 || w.StartBy > w.Delay, "start by %s is not after the delay of %s", w.StartBy, w.Delay)
	complain(!w.Ordered || w.Subject != nil && *w.Subject != "", "ordered without a subject")
	complain(slices.Contains(whens, w.When), "follows when %q", w.When)
	complain(w.Delay >= 0, "delay of %s is negative", w.Delay)
	complain(w.MaxAttempts == nil || *w.MaxAttempts > 0, "max attempts below 1")
	complain(w.MaxAttempts == nil || *w.MaxAttempts <= math.MaxInt32, "max attempts above %d", math.MaxInt32)
	return errors.Join(errs...)
}

// IdempotencyRow returns the idempotency key in its stored form, or an empty string if there is none. If there is a submitter, the stored key is a
// hash of both, so that submitters can use the same key and the stored key stays short.
func (w *Submission) IdempotencyRow() string {
	if w.IdempotencyKey == "" || w.Submitter == "" {
		return w.IdempotencyKey
	}
	sum := sha256.Sum256([]byte(w.Submitter + "\x00" + w.IdempotencyKey)) // a submitter contains no NUL
	return "sha256:" + hex.EncodeToString(sum[:])
}

// First returns the row of a pipeline's first job. The plan must already be encoded.
func (w *Submission) First(id int64, lane string) store.NewJob {
	n := w.Row(id, lane)
	if w.Pipeline != "" || len(PlanOf(w.Planned).Chain) > 0 {
		n.Pipeline = &w.Pipeline
	}
	return n
}

// Row returns a job's row. The plan must already be encoded.
func (w *Submission) Row(id int64, lane string) store.NewJob {
	n := store.NewJob{
		ID: id, Kind: w.Kind, Lane: lane, Args: w.Args, Submitter: w.Submitter, Actor: w.Submitter, Priority: job.DefaultPriority,
		MaxAttempts: w.MaxAttempts, MaxCrashes: w.MaxCrashes, UniqueKey: w.UniqueKey, UniqueWhile: w.UniqueWhile, Replace: w.Replace,
		DelayMillis: millis(w.Delay + w.Debounce), DebounceMillis: millis(w.Debounce), DebounceMaxMillis: millis(w.DebounceMax), ThrottleMillis: millis(w.Throttle), NeedsApproval: w.Approval, Ordered: w.Ordered, Unlimited: w.Unlimited, Planned: w.Plan,
	}
	if n.StartMillis = w.StartBy.Milliseconds(); w.StartBy > 0 {
		n.StartMillis = max(n.StartMillis, n.DelayMillis+1)
	}
	if w.Subject != nil {
		n.Subject = *w.Subject
	}
	if w.Key != nil {
		n.Key = *w.Key
	}
	if w.Priority != nil {
		n.Priority = *w.Priority
	}
	return n
}

// millis returns a duration in milliseconds, rounded up to 1 if it is shorter.
func millis(d time.Duration) int64 {
	if d > 0 && d < time.Millisecond {
		return 1
	}
	return d.Milliseconds()
}
