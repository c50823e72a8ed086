package runner

import (
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// EnqueueOption sets an option of one submission.
type EnqueueOption interface {
	enqueue(w *submission)
	ScheduleOption // lets options share one type with schedules; a schedule rejects the options that it does not support
}

type enqueueOption func(*submission)

func (o enqueueOption) enqueue(w *submission) { o(w) }

func (o enqueueOption) schedule(d *declaration) { o(&d.job) }

// Subject sets the object that the job works on. Of the jobs with the same kind and subject, only one runs at a time across all pods.
func Subject(s string) EnqueueOption { return enqueueOption(func(w *submission) { w.Subject = &s }) }

// Lane sets a lane other than the kind's.
func Lane(name string) EnqueueOption { return enqueueOption(func(w *submission) { w.Lane = name }) }

// Priority sets the job's priority within its lane: −100 to 100, higher first, ties by readiness. Default 10.
func Priority(p int) EnqueueOption { return enqueueOption(func(w *submission) { w.Priority = &p }) }

// Delay sets the time from the submission until the job is due.
func Delay(d time.Duration) EnqueueOption { return enqueueOption(func(w *submission) { w.Delay = d }) }

// MaxAttempts overrides the kind's limit for this job.
func MaxAttempts(n int) EnqueueOption {
	return enqueueOption(func(w *submission) { w.MaxAttempts = &n })
}

// The periods of a unique key; see [Unique].
const (
	WhilePending = job.WhilePending
	WhileActive  = job.WhileActive
)

// Unique sets a unique key among jobs of the same kind. If a job already holds the key, the submission has no effect and returns that
// job.
func Unique(key string, while UniqueWhile) EnqueueOption {
	return enqueueOption(func(w *submission) { w.UniqueKey, w.UniqueWhile = &key, (*string)(&while) })
}

// IdempotencyKey makes it safe to submit again after an unknown outcome: the same key returns the same job, for a day. The same key with
// different content is [job.ErrKeyReused]. Keys are separate for each [Submitter], so that no submitter receives another's job. An empty
// key is [job.ErrInvalid], because it would protect nothing.
func IdempotencyKey(key string) EnqueueOption {
	return enqueueOption(func(w *submission) {
		if w.IdempotencyKey = key; key == "" {
			w.wrong = fmt.Errorf("%w: IdempotencyKey is empty", job.ErrInvalid)
		}
	})
}

// NeedsApproval keeps the job from running until an operator approves it with [Admin.Approve]. Without approval within
// Options.ApprovalTTL it is cancelled. A lane can require approval for all jobs that are submitted to it (lanes.requires_approval). The
// later steps of a pipeline need no approval.
func NeedsApproval() EnqueueOption { return enqueueOption(func(w *submission) { w.Approval = true }) }

// Submitter sets the name of the job's submitter. The steps and children that follow from the job inherit it and cannot set another. A
// principal that may see a pipeline may therefore see all of it.
func Submitter(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Submitter = name })
}

// Pipeline sets the name of the pipeline that the job begins, for lists: at most 200 bytes.
func Pipeline(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Pipeline = name })
}

// InSchema sets the schema of Trapeze's tables for [EnqueueSQL]. Default trapeze. Only EnqueueSQL accepts it.
func InSchema(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.schema = name })
}

// Foreign marks the kind as handled by another program: it need not be registered here.
func Foreign() EnqueueOption { return enqueueOption(func(w *submission) { w.Foreign = true }) }

// Chain declares a pipeline at submission; its steps need not know each other. Each step starts after the previous one has succeeded,
// reads its result with [Job.PreviousResult], and keeps its subject and priority. [Step] sets options of a single step.
func Chain(first job.Args, rest ...job.Args) job.Args { return chain{first, rest} }

// Step gives a step of a [Chain] its own [Subject], [Lane] and [Priority]. If an option is set twice, the outer one applies.
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
