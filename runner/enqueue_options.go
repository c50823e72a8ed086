package runner

import (
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// EnqueueOption sets how one job is submitted.
type EnqueueOption interface {
	enqueue(w *submission)
	ScheduleOption // that it can be given to a schedule does not mean that one takes it
}

type enqueueOption func(*submission)

func (o enqueueOption) enqueue(w *submission) { o(w) }

func (o enqueueOption) schedule(d *declaration) { o(&d.job) }

// Subject says what the job is about: of the jobs with one kind and subject, one runs at a time, on all pods together.
func Subject(s string) EnqueueOption { return enqueueOption(func(w *submission) { w.Subject = &s }) }

// Lane puts the job into a lane other than its kind's.
func Lane(name string) EnqueueOption { return enqueueOption(func(w *submission) { w.Lane = name }) }

// Priority orders the jobs of a lane: −100 to 100, higher first, ties first ready, first out. Default 10.
func Priority(p int) EnqueueOption { return enqueueOption(func(w *submission) { w.Priority = &p }) }

// Delay makes the job due only after a while.
func Delay(d time.Duration) EnqueueOption { return enqueueOption(func(w *submission) { w.Delay = d }) }

// MaxAttempts overrides the kind's limit for this job.
func MaxAttempts(n int) EnqueueOption {
	return enqueueOption(func(w *submission) { w.MaxAttempts = &n })
}

// The spans of a unique key, see [Unique].
const (
	WhilePending = job.WhilePending
	WhileActive  = job.WhileActive
)

// Unique makes the submission a no-op that returns the job which holds the key, among those of one kind.
func Unique(key string, while UniqueWhile) EnqueueOption {
	return enqueueOption(func(w *submission) { w.UniqueKey, w.UniqueWhile = &key, (*string)(&while) })
}

// IdempotencyKey makes it safe to submit again after an unknown outcome: the same key returns the same job, for a day. The
// same key with other content is [job.ErrKeyReused]. Each [Submitter] has keys of his own: nobody is given another's job. An empty key is
// [job.ErrInvalid], for it would protect nothing.
func IdempotencyKey(key string) EnqueueOption {
	return enqueueOption(func(w *submission) {
		if w.IdempotencyKey = key; key == "" {
			w.wrong = fmt.Errorf("%w: IdempotencyKey is empty", job.ErrInvalid)
		}
	})
}

// NeedsApproval keeps the job from running until a person approves it ([Admin.Approve]); what nobody approves within
// Options.ApprovalTTL is cancelled. A lane can ask the same of all that is submitted to it (lanes.requires_approval). The
// later steps of a pipeline need no approval of their own.
func NeedsApproval() EnqueueOption { return enqueueOption(func(w *submission) { w.Approval = true }) }

// Submitter names who submitted the job. What follows from it, steps and children, has the same one, and cannot be given another: who may
// see a pipeline may see all of it.
func Submitter(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Submitter = name })
}

// Pipeline names the pipeline that the job begins, so that it is listed by that name: at most 200 bytes.
func Pipeline(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Pipeline = name })
}

// InSchema sets the schema of Trapeze's tables for [EnqueueSQL]. Default trapeze. Only EnqueueSQL takes it.
func InSchema(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.schema = name })
}

// Foreign says that the kind's handler lives in another program: it need not be registered here.
func Foreign() EnqueueOption { return enqueueOption(func(w *submission) { w.Foreign = true }) }

// Chain declares a pipeline when it is submitted: the steps need not know each other. Each step starts when the one before
// has succeeded, reads its result with [Job.PreviousResult], and keeps its subject and priority. Give a step options of its own
// with [Step].
func Chain(first job.Args, rest ...job.Args) job.Args { return chain{first, rest} }

// Step gives a step of a [Chain] its own [Subject], [Lane] and [Priority]. Of the same option given twice, the outer one counts.
func Step(args job.Args, options ...EnqueueOption) job.Args { return step{args, options} }

type chain struct {
	first job.Args
	rest  []job.Args
}

func (c chain) Kind() string { return c.first.Kind() }

type step struct {
	args    job.Args
	options []EnqueueOption
}

func (s step) Kind() string { return s.args.Kind() }
