package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Func handles jobs of one kind. A nil [Outcome] and a nil error mean that the job succeeded without a result.
//
// Its context is cancelled with a cause ([context.Cause]): an operator cancelled or stopped the job, the run timed out, the handler gave no
// sign of life for too long ([InactivityTimeout]), the job is too old, or the pod lost its lease or is shutting down. A run that times out or
// gives no sign of life counts as a failed attempt; an error that the handler returns after any other cause does not. Writes outside
// [Outcome.InTx] and [Job.Tx] are at-least-once: after a crash, they may be repeated.
//
// The handler's goroutine is reused. A handler that locks its thread (runtime.LockOSThread) or sets profiler labels must undo both.
type Func[A job.Args] func(ctx context.Context, j *Job[A]) (*Outcome, error)

// HandleOption is an option for all jobs of a kind.
type HandleOption interface{ handle(k *registered) }

type handleOption func(*registered)

func (o handleOption) handle(k *registered) { o(k) }

// Timeout limits each run. When it expires, the handler's context is cancelled with [job.ErrTimeout], and the run counts as a failed
// attempt. Default: Options.Timeout.
func Timeout(d time.Duration) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(d >= 0, "Timeout(%s), want 0 or more", d)
		k.Timeout = d
	})
}

// Retry sets the maximum number of attempts, and optionally the delay between them. It also limits errors marked [Retryable]. Default:
// Options.MaxAttempts, which does not limit those below ten attempts, and the zero [Backoff].
func Retry(max int, wait ...job.Backoff) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(max >= 1, "Retry(%d), want at least one attempt", max)
		k.complain(len(wait) <= 1, "Retry with %d back-offs, want one", len(wait))
		k.MaxAttempts, k.Backoff = max, job.Backoff{}
		for _, w := range wait {
			k.complain(w.Base >= 0 && w.Cap >= 0, "Retry with a back-off of %s up to %s, want 0 or more", w.Base, w.Cap)
			k.Backoff = w
		}
	})
}

// NoRetry makes an error of the handler fail the job at once. It suits handlers that must not repeat their effects outside the database. To
// rule out that a job runs again after a crash, add [MaxCrashes] of 1.
func NoRetry() HandleOption { return Retry(1) }

// MaxCrashes sets the crash limit: the job fails when its pod dies or loses its lease for the n-th time. With 1, it fails at the first crash
// and never runs again, and it is not claimed ahead. Default: Options.MaxCrashes.
func MaxCrashes(n int) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(n >= 1, "MaxCrashes(%d), want at least 1", n)
		k.MaxCrashes = n
	})
}

// ConcurrencyPerKey limits how many jobs of this kind may run at a time for each [Key], on all pods together. Jobs without a key have no limit. The
// program that started last decides. A limit for a single key takes precedence over it: see the command `trapeze limit`. Default: no limit.
func ConcurrencyPerKey(n int) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(n >= 1, "ConcurrencyPerKey(%d), want at least 1", n)
		k.PerKey = n
	})
}

// StartWithin limits the time from when a job of this kind is due until its first start. A job that has not started by then fails with the reason
// expired, as with [StartBy]; if both are set, the earlier time decides, and so does that of a lane with such a limit. The time is set when the job is
// created, in whole milliseconds: by any submission, as a next step, as a child, or by a schedule. Failure steps and jobs that an operator retries have
// no limit. The program that started last decides. Default: no limit.
func StartWithin(d time.Duration) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(d >= time.Millisecond, "StartWithin(%s), want at least 1ms", d)
		k.StartWithin = d
	})
}

// ContinueWithoutDatabase lets handlers of this kind continue when the pod cannot reach the database for longer than its lease. Their writes are still
// fenced, but their external effects may overlap with those of the job's next run on another pod.
func ContinueWithoutDatabase() HandleOption {
	return handleOption(func(k *registered) { k.ContinueWithoutDatabase = true })
}

// InactivityTimeout cancels a run's context with [job.ErrInactive] if its handler gives no sign of life for d. Signs of life are progress
// ([Job.Progress], [Job.Message]), an emitted event, and a committed [Job.Tx]. This detects handlers that hang in a live process. The run
// counts as a failed attempt with the reason inactive. 0 turns the check off, regardless of the lane. Default: the lane's setting
// (lanes.inactivity_timeout_s, which also applies to running jobs), or else Options.InactivityTimeout.
func InactivityTimeout(d time.Duration) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(d >= 0, "InactivityTimeout(%s), want 0 or more", d)
		k.InactivityTimeout = &d
	})
}

// Secrets marks arguments of a kind as secret: they are shown only to principals with permission to see secrets. Each one is given as a
// JSON pointer, such as /password or /users/*/token, in which * stands for every member or element. The pointers supplement the fields
// tagged `secret:"true"` in the arguments' type. Without this option, all values of a [HandleRaw] kind are hidden, because the runner
// cannot know which are secret. Secrets() without pointers declares that no argument is secret.
func Secrets(pointers ...string) HandleOption {
	return handleOption(func(k *registered) {
		for _, pointer := range pointers {
			k.complain(strings.HasPrefix(pointer, "/"), "secret %s: want a JSON pointer, such as /password or /users/*/token", pointer)
		}
		k.secrets, k.secretsKnown = append(k.secrets, pointers...), true
	})
}

// registered is a registered kind with its handler and options.
type registered struct {
	*engine.Handler
	secrets      []string // JSON pointers into its arguments
	secretsKnown bool
	args         *text.Shape // the declared members of its arguments; nil if the type does not show them
	wrong        []string    // errors in the options

	batched   bool // registered with HandleBatch
	batchSize int  // 0 means the default
	batchWait *time.Duration
}

func (k *registered) complain(ok bool, format string, args ...any) {
	if !ok {
		k.wrong = append(k.wrong, fmt.Sprintf(format, args...))
	}
}

// Handle registers a kind's handler. Call it once per kind, before [Runner.Run]. If the kind is already registered, the handler is nil, an
// option is invalid or [job.ValidateKind] rejects the name, the kind is not registered, and Run returns all such mistakes as one
// [job.ErrInvalid]. Handle panics only after Run has been called.
func Handle[A job.Args](r *Runner, handler Func[A], options ...HandleOption) {
	var zero A
	name := zero.Kind()
	if handler == nil {
		r.mistake("the handler of kind %q is nil", name)
		return
	}
	if pointers, known := secretsOf(reflect.TypeFor[A]()); known {
		options = slices.Concat(options, []HandleOption{Secrets(pointers...), handleOption(func(k *registered) { k.args = text.ShapeOf(reflect.TypeFor[A]()) })})
	}
	handle(r, name, options, func(ctx context.Context, j *work.Job) (*Outcome, error) {
		typed := &Job[A]{core: core{j, ctx}}
		if err := decodeArgs(name, j.Claimed.Args, &typed.Args); err != nil {
			return nil, err
		}
		return handler(ctx, typed)
	})
}

// HandleFunc registers a handler that returns only an error, as most jobs need: without one, the job has succeeded and has no result. Otherwise
// it works like [Handle].
func HandleFunc[A job.Args](r *Runner, handler func(ctx context.Context, j *Job[A]) error, options ...HandleOption) {
	if handler == nil {
		Handle[A](r, nil, options...)
		return
	}
	Handle(r, func(ctx context.Context, j *Job[A]) (*Outcome, error) { return nil, handler(ctx, j) }, options...)
}

// HandleRaw registers a handler that decodes its arguments itself, for kinds whose names are known only at run time. Otherwise it works
// like [Handle].
func HandleRaw(r *Runner, name string, handler Func[Raw], options ...HandleOption) {
	if handler == nil {
		r.mistake("the handler of kind %q is nil", name)
		return
	}
	handle(r, name, options, func(ctx context.Context, j *work.Job) (*Outcome, error) {
		return handler(ctx, rawJob(ctx, name, j))
	})
}

// rawJob returns a job whose handler decodes the arguments itself.
func rawJob(ctx context.Context, name string, j *work.Job) *Job[Raw] {
	return &Job[Raw]{core: core{j, ctx}, Args: Raw{Name: name, JSON: j.Claimed.Args}}
}

func handle(r *Runner, name string, options []HandleOption, run func(context.Context, *work.Job) (*Outcome, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		panic(fmt.Sprintf("runner: kind %q is registered after Run", name))
	}
	k := &registered{Handler: &engine.Handler{Name: name, Timeout: r.opts.Timeout, Run: encoded(through(r.opts.Middleware, name, run)), RunSeconds: r.pod.Metrics.RunSeconds.WithLabelValues(name).Observe, Ends: r.pod.Ends.Of(name)}}
	for i, o := range options {
		if k.complain(o != nil, "option %d is nil", i+1); o != nil {
			o.handle(k)
		}
	}
	k.complain(k.batched || k.batchSize == 0 && k.batchWait == nil, "BatchSize and BatchWait require HandleBatch")
	k.complain(!r.followsItself(name, k.OnFailure, map[string]bool{}), "it is its own OnFailure kind: its failures would never end")
	if r.remote != nil {
		const elsewhere = "%s, which a remote worker cannot declare: set it on the kind in a pod"
		k.complain(len(k.OnFailure) == 0, elsewhere, "OnFailure")
		k.complain(k.PerKey == 0, elsewhere, "ConcurrencyPerKey")
		k.complain(k.StartWithin == 0, elsewhere, "StartWithin")
		k.complain(!k.RequiresDatabase, "it writes into the database, which a remote worker does not have")
	}
	k.complain(r.pod.Kinds[name] == nil, "it is registered twice")
	wrong := job.ValidateKind(name)
	for _, why := range k.wrong {
		wrong = errors.Join(wrong, fmt.Errorf("%w: kind %q: %s", job.ErrInvalid, name, why))
	}
	if wrong != nil {
		r.mistakes = append(r.mistakes, wrong)
		return
	}
	r.pod.Kinds[name], r.registered[name] = k.Handler, k
}

// mistake records a mistake for Run to return.
func (r *Runner) mistake(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mistakes = append(r.mistakes, fmt.Errorf("%w: "+format, append([]any{job.ErrInvalid}, args...)...))
}

// check returns all mistakes in handlers and schedules as one error.
func (r *Runner) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.checkDeclared()
	return err
}

// followsItself reports whether a failure of this kind can lead to another job of the same kind. It searches the on-failure steps, the
// on-failure steps of their kinds, and so on.
func (r *Runner) followsItself(kind string, steps []work.Step, seen map[string]bool) bool {
	return slices.ContainsFunc(steps, func(s work.Step) bool {
		next := r.registered[s.Kind]
		if s.Kind == kind || next == nil || seen[s.Kind] {
			return s.Kind == kind
		}
		seen[s.Kind] = true
		return r.followsItself(kind, next.OnFailure, seen)
	})
}

// encoded wraps a handler so that its outcome is encoded as soon as the handler returns.
func encoded(run func(context.Context, *work.Job) (*Outcome, error)) func(context.Context, *work.Job) (*work.Outcome, error) {
	return func(ctx context.Context, j *work.Job) (*work.Outcome, error) {
		o, err := run(ctx, j)
		if err != nil {
			return nil, err
		}
		return encodeOutcome(o)
	}
}

// Kinds returns the sorted kinds that this runner runs: all registered kinds, or those in Options.Kinds.
func (r *Runner) Kinds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names, _ := r.kindsToRun() // Run reports unregistered kinds in Options.Kinds
	return names
}

// handles reports whether a handler is registered for a kind, even if Options.Kinds excludes it.
func (r *Runner) handles(kind string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pod.Kinds[kind] != nil
}

// Raw is a job whose kind is given by name and whose arguments are already JSON. The kind need not be registered here.
type Raw struct {
	Name string
	JSON json.RawMessage
}

// Kind implements [job.Args].
func (r Raw) Kind() string { return r.Name }

// MarshalJSON implements [json.Marshaler].
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(bytes.TrimSpace(r.JSON)) == 0 {
		return []byte("{}"), nil
	}
	return r.JSON, nil
}

// kindsToRun returns the kinds that this pod claims, sorted.
func (r *Runner) kindsToRun() ([]string, error) {
	names := []string{}
	for name := range r.pod.Kinds {
		if len(r.opts.Kinds) == 0 || slices.Contains(r.opts.Kinds, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range r.opts.Kinds {
		if r.pod.Kinds[name] == nil {
			return names, fmt.Errorf("%w: run only kind %q: it has no registered handler", job.ErrUnknownKind, name)
		}
	}
	return names, nil
}

// decodeArgs decodes a job's arguments into args. Its error is permanent, because the arguments do not change. Users without permission to
// see secrets can read the error, so it contains only the position and the types, never a value.
func decodeArgs(kind string, raw json.RawMessage, args any) error {
	err := json.Unmarshal(raw, args)
	if err == nil {
		return nil
	}
	return job.Permanent(fmt.Errorf("%w: decode the args of %s: %s", job.ErrInvalidArgs, kind, withoutValues(err)))
}

// withoutValues describes a JSON decoding error without quoting values. It ignores a custom decoder's error text, which may quote the
// input.
func withoutValues(err error) string {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("invalid JSON at byte %d", syntax.Offset)
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return fmt.Sprintf("the type's decoder returned %T; its text is omitted because it may contain a secret", err)
	}
	have, _, numeric := strings.Cut(wrong.Value, " ") // for a number, Value is "number" followed by a space and the number
	want := wrong.Type.String()
	if limits := limitsOf(wrong.Type); numeric && limits != "" {
		want, have = want+", "+limits, "another number"
	}
	if wrong.Field == "" {
		return fmt.Sprintf("want %s, have %s", want, have)
	}
	return fmt.Sprintf("field %s: want %s, have %s", wrong.Field, want, have)
}

// limitsOf describes the range of a numeric type. It is empty for other types.
func limitsOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number from %d to %d", int64(-1)<<(t.Bits()-1), int64(1)<<(t.Bits()-1)-1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-t.Bits()))
	case reflect.Float32, reflect.Float64:
		return fmt.Sprintf("a number of at most %d bits", t.Bits())
	}
	return ""
}

// secrets returns JSON pointers to a kind's secret arguments; see [Secrets]. For a kind with secrets, declared lists the members of its
// arguments that this program knows. known is false for kinds without a handler here, and for kinds whose argument type does not show which
// fields are secret.
func (r *Runner) secrets(name string) (pointers []string, declared *text.Shape, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.registered[name]
	switch {
	case k == nil:
		return nil, nil, false
	case len(k.secrets) > 0:
		declared = k.args
	}
	return slices.Clone(k.secrets), declared, k.secretsKnown
}

// Middleware wraps the handler of every kind, for tracing, logging or checks. next calls the handler, or the next element of
// Options.Middleware. The runner uses the middleware's return values instead of the handler's. Values in the context passed to next are
// visible to the handler. They are also visible in [Outcome.InTx], unless the pod's context already has a value for the key, such as the
// run's span.
type Middleware func(ctx context.Context, j *Job[Raw], next func(context.Context) (*Outcome, error)) (*Outcome, error)

// through wraps a handler in middleware, with the first element outermost.
func through(list []Middleware, kind string, handler func(context.Context, *work.Job) (*Outcome, error)) func(context.Context, *work.Job) (*Outcome, error) {
	if len(list) == 0 {
		return handler
	}
	return func(ctx context.Context, j *work.Job) (*Outcome, error) {
		call := func(ctx context.Context) (*Outcome, error) {
			o, err := handler(ctx, j)
			return o.withValues(ctx), err
		}
		for i := len(list) - 1; i >= 0; i-- {
			middleware, next := list[i], call
			call = func(ctx context.Context) (*Outcome, error) { return middleware(ctx, rawJob(ctx, kind, j), next) }
		}
		return call(ctx)
	}
}

// withValues returns an outcome whose InTx functions can also read the values in from.
func (o *Outcome) withValues(from context.Context) *Outcome {
	if o == nil || len(o.writes) == 0 {
		return o
	}
	with := *o // copied, because a handler may return the same outcome again
	with.writes = slices.Clone(o.writes)
	for i, w := range o.writes {
		if w.Do != nil {
			with.writes[i].Do = func(ctx context.Context, tx pgx.Tx) error { return w.Do(valued{ctx, from}, tx) }
		}
	}
	return &with
}

// valued is a context that falls back to another context's values.
type valued struct {
	context.Context
	from context.Context
}

func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.from.Value(key)
}

// EnqueueMiddleware wraps each submission. A submission is one job passed to [Runner.Enqueue] or [Runner.EnqueueTx], or a batch of up to
// 2,000 jobs passed to [Runner.EnqueueMany] or [Runner.EnqueueManyTx]. EnqueueMany commits each batch separately. The middleware is also
// called for submissions from handlers and HTTP API clients.
//
// next submits the jobs with the context passed to it, or calls the next element of Options.EnqueueMiddleware. It returns one [Submitted]
// per job, in the same order, or an error. The caller receives the middleware's return values. Returning an error without calling next
// rejects the submission. After EnqueueTx and EnqueueManyTx, the jobs exist only if the caller commits.
//
// The middleware is not called for jobs started by a handler's outcome, such as [Then] or [FanOut], or by a schedule.
type EnqueueMiddleware func(ctx context.Context, jobs []Submission, next func(context.Context) ([]Submitted, error)) ([]Submitted, error)
