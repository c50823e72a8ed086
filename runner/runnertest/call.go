package runnertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// CallOptions describes the job that a handler sees in a [Call], apart from the arguments. Empty fields have defaults.
type CallOptions struct {
	ID, PipelineID   int64 // ID defaults to 1, PipelineID to ID
	Lane, Subject    string
	Key              string // see runner.Key
	Priority         *int   // default 10
	Attempt          int    // default 1
	MaxAttempts      int    // default 5
	Crashes, Snoozes int
	Step             int
	Fence            int64     // default 1
	CreatedAt        time.Time // default: now
	ClaimedAt        time.Time // default: now
	SubmittedBy      string
	PodID, PodName   string       // default "runnertest"
	Token            string       // default "token"; set it if an earlier attempt called Job.Token
	Failure          *job.Failure // the failed job that this job follows, if any
	PreviousResult   any          // encoded as JSON; nil for none
	Branches         []job.Branch // branches of the fan-out that the job joins, or nil; a branch without a state has succeeded
	Checkpoint       any          // checkpoint from an earlier run, encoded as JSON; nil for none

	// Context is the handler's context. A test can cancel it with one of the causes defined in package runner. Default: the test's context.
	Context context.Context
}

// Run records one [Call]: the job's state, its outcome and its writes, as Trapeze would store them.
type Run struct {
	// State is the job's state after the call: succeeded, failed or cancelled if the job has finished, waiting if it is waiting for
	// branches, and pending if it will run again.
	State  job.State
	Result json.RawMessage   // nil if there is none
	Status job.OutcomeStatus // ok, warning or error; empty if the job will run again. For a waiting job, the status with which it will end

	// Reason is the job's reason, such as ok, children or error. For a pending job it is retry after an error, snooze after a Snooze,
	// or empty if Claim.Context ended in a shutdown and the job was handed back.
	Reason     job.Reason
	Err        error          // the handler's error or panic, or why its outcome was rejected; if not nil, no next step follows
	Class      job.ErrorClass // the class of Err
	Code       string         // the code of Err, if any: an SQLSTATE or the handler's code
	RetryAfter *time.Duration // the delay that Err requests, or nil for the kind's backoff
	Snooze     *Snooze        // the snooze that the handler requested, or nil

	Next     *job.Submission  // the step set with Then, or nil
	Children []job.Submission // the children of FanOut
	Parts    int              // the number of parts of Deferred
	FailFast bool
	Join     []job.Step // the step set with Join, and the steps that a chain plans after it
	EndChain bool       // the remaining steps of the chain are dropped
	Undo     []job.Step // the steps set with Outcome.OnFailure and OnFailureOrCancel, latest first

	Progress    []job.Progress    // each call to Job.Progress and Job.Message, in order
	Events      []job.Event       // each call to Job.Emit, in order: Event, Level, Message and Fields are set
	Checkpoints []json.RawMessage // each call to Job.Checkpoint, and of Job.Write with a checkpoint, in order
	Batches     []Batch           // each call to Job.Write, in order; Call does not run them

	// InTx lists the functions passed to Outcome.InTx. Call does not run them; use Write.
	InTx []func(ctx context.Context, tx pgx.Tx) error
	// Statements lists the statements passed to Outcome.Write. Call does not run them; use Write.
	Statements []Statement

	t      testing.TB
	kind   string
	writes work.Writes
}

// Snooze describes a request to run a job again after a wait, without a result.
type Snooze struct {
	Wait    time.Duration
	Backoff bool // the wait grows with each snooze of the job
	Why     string
}

// Messages returns the texts passed to Job.Message.
func (r Run) Messages() (list []string) {
	for _, p := range r.Progress {
		if p.Message != nil {
			list = append(list, *p.Message)
		}
	}
	return list
}

// Statement is a statement passed to Outcome.Write or Job.Write, with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// Batch records one call to Job.Write.
type Batch struct {
	Statements []Statement
	Checkpoint json.RawMessage // nil if there is none
}

// statements returns the SQL statements among writes.
func statements(writes work.Writes) (list []Statement) {
	for _, w := range writes {
		if w.Do == nil {
			list = append(list, Statement{w.SQL, w.Args})
		}
	}
	return list
}

// Write runs the writes of Outcome.InTx and Outcome.Write in the caller's transaction, in order. It stops at the first error.
func (r Run) Write(ctx context.Context, tx pgx.Tx) error { return r.writes.Run(ctx, tx) }

// RequireState fails the test immediately unless the job's state is want.
func (r Run) RequireState(want job.State) {
	r.t.Helper()
	if r.State == want {
		return
	}
	why := ""
	if r.Reason != "" {
		why += ": " + string(r.Reason)
	}
	if r.Err != nil {
		why += ": " + r.Err.Error()
	}
	r.t.Fatalf("runnertest: the job (%s) would be %s, want %s%s", r.kind, r.State, want, why)
}

// Call calls a handler once, on the test's goroutine, without a database or a pod, and returns a record of the call. The optional claim
// describes the job that the handler sees; the default is a first attempt. The arguments are encoded and decoded like a stored job's. If
// they cannot be encoded, the test fails immediately.
//
// A panic in the handler is recorded as its error, as on a pod. Call does not check the kinds and lanes of next steps and children.
// Middleware and the options of [runner.Handle] do not apply: set Claim.MaxAttempts instead of [runner.Retry], and cancel Claim.Context
// instead of using [runner.Timeout]. [runner.Job.Tx] returns an error because it needs a database. Test handlers that use it with [New].
func Call[A job.Args](t testing.TB, handler runner.Func[A], args A, claim ...CallOptions) Run {
	t.Helper()
	if len(claim) > 1 {
		t.Fatalf("runnertest: Call takes at most one Claim, got %d", len(claim))
	}
	var c CallOptions
	if len(claim) == 1 {
		c = claim[0]
	}
	r, kind := withoutDatabase(t), args.Kind()
	defer r.Close()
	if raw, ok := any(handler).(runner.Func[runner.Raw]); ok {
		runner.HandleRaw(r, kind, raw)
	} else {
		runner.Handle(r, handler)
		kind = (*new(A)).Kind()
	}
	p := newCalled(t, r, kind, args, c)
	p.call()
	return p.record(t)
}

// withoutDatabase returns a runner without a database.
func withoutDatabase(t testing.TB) *runner.Runner {
	t.Helper()
	r, err := runner.NewRemote(runner.RemoteOptions{Name: "runnertest", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("runnertest: make a runner without a database: %v", err)
	}
	return r
}

// called is one call of a handler.
type called struct {
	engine  *engine.Engine
	ctx     context.Context
	job     *work.Job
	writer  *writer
	limits  engine.Attempts
	outcome *work.Outcome
	err     error
}

// newCalled prepares a call.
func newCalled(t testing.TB, r *runner.Runner, kind string, args job.Args, c CallOptions) *called {
	t.Helper()
	if err := inside.Of(r).Check(); err != nil {
		t.Fatalf("runnertest: %v", err)
	}
	p := &called{engine: inside.Of(r).Pod.Engine, ctx: c.Context, limits: engine.Attempts{Default: c.MaxAttempts == 0}, err: routine.ErrExited}
	if p.ctx == nil {
		p.ctx = t.Context()
	}
	encoded, err := work.EncodeArgs(kind, args)
	if err != nil {
		t.Fatalf("runnertest: encode the args: %v", err)
	}
	orElse(&c.MaxAttempts, p.engine.Opts.MaxAttempts)
	if p.job, p.writer, err = c.job(kind, encoded); err != nil {
		t.Fatalf("runnertest: make the job: %v", err)
	}
	p.limits.This, p.limits.Max = p.job.Claimed.Attempt, p.job.MaxAttempts
	return p
}

// call calls the handler.
func (p *called) call() {
	p.outcome, p.err = perform(func() (*work.Outcome, error) { return p.engine.Kinds[p.job.Claimed.Kind].Run(p.ctx, p.job) })
}

// record returns the record of the call.
func (p *called) record(t testing.TB) Run {
	w, o := p.writer, p.outcome
	if p.err == nil && o != nil && o.Fan != nil && o.Fan.Parts > 0 && !w.hasToken() {
		p.err = store.ErrNoToken
	}
	run := conclude(p.engine, o, p.err, context.Cause(p.ctx), p.limits)
	run.t, run.kind = t, p.job.Claimed.Kind
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	run.Progress, run.Events, run.Checkpoints, run.Batches = w.progress, w.events, w.checkpoints, w.batches
	return run
}

// perform calls a handler and converts a panic to an error. runtime.Goexit, which a failing test calls, ends the test.
func perform(run func() (*work.Outcome, error)) (o *work.Outcome, err error) {
	defer routine.Recover(&err)
	if o, err = run(); err != nil {
		err = work.ReadError(err) // a panic while reading the error is treated as the handler's
	}
	return o, err
}

// conclude decides how a job ends, as the engine does.
func conclude(e *engine.Engine, o *work.Outcome, err, cause error, attempts engine.Attempts) Run {
	if o == nil {
		o = &work.Outcome{Status: job.OK}
	}
	run := Run{writes: o.Writes, Statements: statements(o.Writes)}
	for _, w := range o.Writes {
		if w.Do != nil {
			run.InTx = append(run.InTx, w.Do)
		}
	}
	if err == nil {
		err = run.follow(e, o)
	}
	if err == nil {
		err = o.Validate()
	}
	switch {
	case errors.Is(cause, job.ErrCancelled): // regardless of the handler's result
		return Run{State: job.Cancelled, Status: job.Error, Reason: job.ReasonCancelled, Err: err}
	case errors.Is(cause, job.ErrForceCancelled):
		return Run{State: job.Cancelled, Status: job.Error, Reason: job.ReasonForceCancelled, Err: err}
	case err != nil && engine.HandedBack(cause) != "":
		return Run{State: job.Pending, Err: err}
	case err != nil:
		f := engine.Judge(err, cause, attempts)
		end := f.FinalOutcome()
		run = Run{State: end.State, Status: end.Outcome, Reason: end.Reason, Err: f.Err, Class: end.Class, Code: end.Code}
		if f.Again {
			run.State, run.Status, run.Reason, run.RetryAfter = job.Pending, "", job.ReasonRetry, f.After
		}
	case o.Snooze != nil:
		run.State, run.Reason = job.Pending, job.ReasonSnooze
		run.Snooze = &Snooze{o.Snooze.Wait, o.Snooze.Backoff, o.Snooze.Why}
	case o.Fan != nil && len(o.Fan.Children)+o.Fan.Parts > 0:
		run.State, run.Reason, run.Status, run.Result = job.Waiting, job.ReasonChildren, o.Status, o.Result
	default:
		run.State, run.Reason, run.Status, run.Result = job.Succeeded, job.ReasonOK, o.Status, o.Result
	}
	return run
}

// follow records the next step or the fan-out, or rejects it as the engine would. It assumes that every kind is registered.
func (r *Run) follow(e *engine.Engine, o *work.Outcome) error {
	r.EndChain, r.Undo = o.EndChain, work.Describe(o.Undo)
	for i := range o.Undo {
		o.Undo[i].AllowUnregistered = true
	}
	if o.Next != nil {
		next := o.Next.Describe()
		r.Next, o.Next.AllowUnregistered = &next, true
	}
	if o.Fan != nil {
		r.Parts, r.FailFast, r.Join = o.Fan.Parts, o.Fan.FailFast, work.Describe(o.Fan.Join)
		for _, child := range o.Fan.Children {
			r.Children = append(r.Children, child.Describe())
			child.AllowUnregistered = true
		}
		for i := range o.Fan.Join {
			o.Fan.Join[i].AllowUnregistered = true
		}
	}
	return job.Permanent(e.CheckOutcome(o))
}

// job returns the claimed job and the writer that records its writes.
func (c CallOptions) job(kind string, args json.RawMessage) (*work.Job, *writer, error) {
	now := time.Now()
	orElse(&c.ID, 1)
	orElse(&c.PipelineID, c.ID)
	orElse(&c.Lane, job.DefaultLane)
	orElse(&c.Attempt, 1)
	orElse(&c.Fence, 1)
	orElse(&c.CreatedAt, now)
	orElse(&c.ClaimedAt, now)
	orElse(&c.PodID, "runnertest")
	orElse(&c.PodName, "runnertest")
	issued := c.Token != ""
	orElse(&c.Token, "token")
	priority := job.DefaultPriority
	if c.Priority != nil {
		priority = *c.Priority
	}
	w := &writer{id: c.ID, token: c.Token, issued: issued, failure: c.Failure, joins: c.Branches != nil}
	for i, b := range c.Branches {
		if b.No == 0 && b.Part == "" {
			b.No = i + 1
		}
		if orElse(&b.State, job.Succeeded); b.State == job.Succeeded {
			orElse(&b.Outcome, job.OK)
		}
		w.branches = append(w.branches, b)
	}
	lease := job.Lease{JobID: c.ID, Fence: c.Fence, Pod: c.PodID}
	j := &work.Job{Pod: c.PodName, Writer: w, MaxAttempts: c.MaxAttempts, Lease: lease, Claimed: &store.Claimed{
		ID: c.ID, Lane: c.Lane, Priority: priority, Fence: c.Fence, Attempt: c.Attempt, Crashes: c.Crashes, Snoozes: c.Snoozes, ClaimedAt: c.ClaimedAt,
		Path: "poll", Definition: store.Definition{Kind: kind, Subject: c.Subject, Key: c.Key, Args: args, PipelineID: c.PipelineID, Step: c.Step,
			Submitter: c.SubmittedBy, CreatedAt: c.CreatedAt},
	}}
	var err error
	if w.previous, err = work.EncodeResult(c.PreviousResult); err != nil {
		return nil, nil, err
	}
	j.Claimed.ParentID = new(int64) // makes Branches call the writer
	j.Claimed.Checkpoint, err = work.EncodeResult(c.Checkpoint)
	return j, w, err
}

// orElse sets *field to value if it is empty.
func orElse[T comparable](field *T, value T) {
	var empty T
	if *field == empty {
		*field = value
	}
}

// writer is a [work.Writer] without a database. It records the handler's writes.
type writer struct {
	id       int64
	token    string
	previous json.RawMessage
	failure  *job.Failure
	joins    bool
	branches []job.Branch

	mu          sync.Mutex
	issued      bool // this attempt or an earlier one has asked for the token
	closed      bool // the handler has returned
	progress    []job.Progress
	events      []job.Event
	checkpoints []json.RawMessage
	batches     []Batch
}

var errNoDatabase = errors.New("Job.Tx needs a database, and runnertest.Call has none: test this handler with runnertest.New, " +
	"or have it write with Job.Write or Outcome.InTx, which Call records")

// Tx implements [work.Writer].
func (w *writer) Tx(context.Context, work.TxFunc, func() (json.RawMessage, error)) error {
	return job.Permanent(errNoDatabase)
}

// record calls write, which records a write of the handler. Like a pod, it returns an error after the end of the run.
func (w *writer) record(ctx context.Context, write func()) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return job.ErrLeaseLost
	}
	write()
	return nil
}

// Write implements [work.Writer].
func (w *writer) Write(ctx context.Context, writes work.Writes, checkpoint json.RawMessage) error {
	return w.record(ctx, func() {
		w.batches = append(w.batches, Batch{statements(writes), checkpoint})
		if checkpoint != nil {
			w.checkpoints = append(w.checkpoints, checkpoint)
		}
	})
}

// Progress implements [work.Writer].
func (w *writer) Progress(p job.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.progress = append(w.progress, p)
	}
}

// Emit implements [work.Writer].
func (w *writer) Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error {
	return w.record(ctx, func() {
		orElse(&level, "info")
		no := len(w.events) + 1
		w.events = append(w.events, job.Event{Job: &w.id, EventNo: &no, At: time.Now(), Level: level, Event: event, Message: &message, Fields: fields})
	})
}

// Checkpoint implements [work.Writer].
func (w *writer) Checkpoint(ctx context.Context, v json.RawMessage) error {
	return w.record(ctx, func() { w.checkpoints = append(w.checkpoints, v) })
}

// PreviousResult implements [work.Writer].
func (w *writer) PreviousResult(context.Context) (json.RawMessage, error) {
	if w.previous == nil {
		return nil, fmt.Errorf("read the result of the job before job %d: %w: give Call a Claim with PreviousResult", w.id, job.ErrNotFound)
	}
	return w.previous, nil
}

// Failure implements [work.Writer].
func (w *writer) Failure(context.Context) (job.Failure, error) {
	if w.failure == nil {
		return job.Failure{}, fmt.Errorf("read the failure that job %d follows: %w: give Call a Claim with Failure", w.id, job.ErrNotFound)
	}
	return *w.failure, nil
}

// Branches implements [work.Writer].
func (w *writer) Branches(context.Context) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) {
		if !w.joins {
			yield(job.Branch{}, fmt.Errorf("read the children that job %d joins: %w: give Call a Claim with Branches", w.id, job.ErrNotFound))
			return
		}
		for _, b := range w.branches {
			if !yield(b, nil) {
				return
			}
		}
	}
}

// CompletionToken implements [work.Writer].
func (w *writer) CompletionToken(context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.issued = true
	return w.token, nil
}

// hasToken reports whether the parts of the job can be completed.
func (w *writer) hasToken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.issued
}
