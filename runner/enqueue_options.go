package runner

import (
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// EnqueueOption is an option for a single submission.
type EnqueueOption interface {
	enqueue(w *submission)
	ScheduleOption // allows schedules to use the same options; a schedule rejects the ones it does not support
}

type enqueueOption func(*submission)

func (o enqueueOption) enqueue(w *submission) { o(w) }

func (o enqueueOption) schedule(d *declaration) { o(&d.job) }

// Subject names the object that the job works on. Only one job with the same kind and subject runs at a time, across all pods.
func Subject(s string) EnqueueOption { return enqueueOption(func(w *submission) { w.Subject = &s }) }

// Key names the owner of the job: a tenant, a customer or an account, in 1 to 200 bytes. Jobs of different keys share a lane fairly: a key with
// many jobs does not delay those of others. Limits per key apply to it, too; see [ConcurrencyPerKey]. Next steps and children have the same key unless
// they set another one. An empty key means none.
func Key(key string) EnqueueOption { return enqueueOption(func(w *submission) { w.Key = &key }) }

// Lane overrides the kind's lane for this job.
func Lane(name string) EnqueueOption { return enqueueOption(func(w *submission) { w.Lane = name }) }

// Priority sets the job's priority within its lane, from −100 to 100. Higher priorities run first; jobs of equal priority run in the order
// in which they became ready. Default 10.
func Priority(p int) EnqueueOption { return enqueueOption(func(w *submission) { w.Priority = &p }) }

// RunAt sets the time at which the job is due. A time in the past means now. Times within the difference between this program's clock and the
// database's are inexact.
func RunAt(t time.Time) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Delay = max(0, time.Until(t)) })
}

// Delay sets the delay between the submission and the time at which the job is due. A negative delay means now.
func Delay(d time.Duration) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Delay = max(0, d) })
}

// StartBy limits the time from the submission until the job's first start, by the database's clock. A job that has not started by then never does: it
// fails with the reason expired, within about a minute, and its failure steps run. A claim by a pod counts as the start: a retry, a recovery or a
// hand-back after it has no such limit. Default: no limit. The limit must be positive and exceed the [Delay]; otherwise, the submission is rejected with
// [job.ErrInvalid].
func StartBy(d time.Duration) EnqueueOption {
	return enqueueOption(func(w *submission) {
		if w.StartBy = d; d <= 0 {
			w.wrong = fmt.Errorf("%w: StartBy(%s), want more than 0", job.ErrInvalid, d)
		}
	})
}

// MaxAttempts overrides the kind's limit for this job.
func MaxAttempts(n int) EnqueueOption {
	return enqueueOption(func(w *submission) { w.MaxAttempts = &n })
}

// MaxAttemptsOf sets the maximum number of attempts per kind, for the job and for the next steps of its [Chain]. [MaxAttempts] takes
// precedence for the job itself. [EnqueueSQL] ignores this option.
func MaxAttemptsOf(kinds map[string]int) EnqueueOption {
	return enqueueOption(func(w *submission) { w.KindAttempts = kinds })
}

// Periods for a unique key; see [Unique].
const (
	WhilePending = job.WhilePending
	WhileActive  = job.WhileActive
)

// Unique sets a key that is unique among jobs of the same kind. If another job already holds the key, the submission has no effect and
// returns that job. The methods of [UniqueOption] change the effect of the submission if that job waits.
func Unique(key string, while UniqueWhile) UniqueOption {
	return UniqueOption{func(w *submission) { w.UniqueKey, w.UniqueWhile = &key, (*string)(&while) }}
}

// UniqueOption is the option that [Unique] returns.
type UniqueOption struct{ enqueueOption }

func (o UniqueOption) and(set func(w *submission)) UniqueOption {
	return UniqueOption{func(w *submission) {
		o.enqueueOption(w)
		set(w)
	}}
}

// Replace makes the job that waits with the key take the args of this submission, its [Chain] and its trace. The job keeps its id, lane, priority, due
// time and position; other options of this submission are ignored. [Submitted.Replaced] reports whether the job was replaced. If the job has already
// started, it has freed the key, and the submission creates a new one. A job that needs approval for the new args awaits approval again.
//
// The submission returns [job.ErrInvalid] unless the key is held [WhilePending], if the waiting job has another subject or [Key], and if it has planned
// steps and the submission has none. It returns [job.ErrKeyHeld] if another [Submitter] submitted the waiting job.
func (o UniqueOption) Replace() UniqueOption {
	return o.and(func(w *submission) { w.Submission.Replace = true })
}

// Debounce makes the job due when no submission with the key has followed for the time wait, but at the latest max after the first submission. The job
// then runs with the args of the latest submission, as with [UniqueOption.Replace]. A job that is already due keeps its position. The first submission
// returns a job that is due after wait.
//
// The submission returns [job.ErrInvalid] if wait is not positive, if max is less than wait, and with a [Delay].
func (o UniqueOption) Debounce(wait, max time.Duration) UniqueOption {
	return o.Replace().and(func(w *submission) {
		if w.Submission.Debounce, w.DebounceMax = wait, max; wait == 0 {
			w.wrong = fmt.Errorf("%w: Debounce with a wait of 0", job.ErrInvalid)
		}
	})
}

// Throttle makes the jobs of the key start at most once in each interval. A submission runs at once if no job waits with the key and the last start is
// longer ago than every. Otherwise, one job waits until the interval has passed. It runs with the args of the latest submission, as with
// [UniqueOption.Replace]. Only the starts of throttled jobs count, and neither retries nor jobs that retention has deleted.
//
// The submission returns [job.ErrInvalid] if every is not positive, with a [Delay], and with Debounce.
func (o UniqueOption) Throttle(every time.Duration) UniqueOption {
	return o.Replace().and(func(w *submission) {
		if w.Submission.Throttle = every; every == 0 {
			w.wrong = fmt.Errorf("%w: Throttle with an interval of 0", job.ErrInvalid)
		}
	})
}

// IdempotencyKey makes it safe to repeat a submission after an unknown outcome: for one day, the same key returns the same job. Reusing a
// key for a different submission returns [job.ErrKeyReused]. Each [Submitter] has a separate set of keys, so no submitter receives
// another's job. An empty key is rejected with [job.ErrInvalid], because it would offer no protection.
func IdempotencyKey(key string) EnqueueOption {
	return enqueueOption(func(w *submission) {
		if w.IdempotencyKey = key; key == "" {
			w.wrong = fmt.Errorf("%w: IdempotencyKey is empty", job.ErrInvalid)
		}
	})
}

// NeedsApproval keeps the job from running until an operator approves it with [Admin.Approve]. If it is not approved within
// Options.ApprovalTTL, it is cancelled. A lane can require approval (lanes.requires_approval) for all jobs submitted to it, and for steps
// that handlers in other lanes send to it. Later steps of a submitted chain need no approval.
func NeedsApproval() EnqueueOption { return enqueueOption(func(w *submission) { w.Approval = true }) }

// Ordered makes a job with a [Subject] keep it between attempts: while the job waits for a retry or is snoozed, the next job with the same kind and
// subject does not run. Jobs of a subject start in the order of their priority, due time and id, provided that they
// have the same [Key] or none: a job that waits for a place of its key lets others of its subject pass. A job that waits for its children keeps no subject. Next steps with a subject are ordered, too. To skip a job that blocks its
// subject, cancel it ([Admin.Cancel]). Without a subject, the submission is rejected with [job.ErrInvalid].
func Ordered() EnqueueOption { return enqueueOption(func(w *submission) { w.Ordered = true }) }

// Submitter names the job's submitter. The job's next steps and children inherit the name and cannot set another. Therefore, a principal
// that may see part of a pipeline may see all of it.
func Submitter(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Submitter = name })
}

// Pipeline sets the display name of the pipeline that the job begins. The name has at most 200 bytes.
func Pipeline(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.Pipeline = name })
}

// InSchema sets the schema that contains Trapeze's tables. The default is trapeze. Only [EnqueueSQL] accepts this option.
func InSchema(name string) EnqueueOption {
	return enqueueOption(func(w *submission) { w.schema = name })
}

// AllowUnregistered marks the kind as handled by another program, so it need not be registered here.
func AllowUnregistered() EnqueueOption {
	return enqueueOption(func(w *submission) { w.AllowUnregistered = true })
}

// Chain declares a pipeline at submission, so its steps need not know about each other. Each step starts after the previous one has
// succeeded, can read that step's result with [Job.PreviousResult], and inherits its subject, key and priority. [With] sets options for a single
// step.
func Chain(first job.Args, rest ...job.Args) job.Args { return chain{first, rest} }

// With sets options for a single job where args stand in a list: for a child of a [FanOut], a job of [Runner.EnqueueMany], or a step of a [Chain],
// which accepts [Subject], [Key], [Lane] and [Priority]. If an option is set more than once, the outermost value applies.
func With(args job.Args, options ...EnqueueOption) job.Args { return withOptions{args, options} }

type chain struct {
	first job.Args
	rest  []job.Args
}

func (c chain) Kind() string { return c.first.Kind() }

type withOptions struct {
	args    job.Args
	options []EnqueueOption
}

func (w withOptions) Kind() string { return w.args.Kind() }
