package runnertest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Claim sets the data that a handler sees of its job in a [Call], except the arguments. An empty field has its default.
type Claim struct {
	ID, PipelineID   int64 // default 1, and the same as ID
	Lane, Subject    string
	Priority         *int // default 10
	Attempt          int  // default 1
	MaxAttempts      int  // default 5
	Crashes, Snoozes int
	Step             int
	Fence            int64     // default 1
	CreatedAt        time.Time // default: now
	ClaimedAt        time.Time // default: now
	SubmittedBy      string
	Boot, PodName    string       // default "runnertest"
	Token            string       // default "token"
	Failure          *job.Failure // of the job that the job follows; nil: none
	PreviousResult   any          // encodes to JSON; nil: none
	Branches         []job.Branch // of the fan-out that the job joins; nil: it joins none. A branch without a state has succeeded
	Checkpoint       any          // of an earlier run; encodes to JSON; nil: none

	// Context is the handler's context. A test may end it with one of the causes of package runner. Default: the test's context.
	Context context.Context
}

// Run is the record of one [Call]: the job's state, its outcome and its writes, as Trapeze would store them.
type Run struct {
	// State is the job's state after the call: succeeded, failed or cancelled; waiting for branches; or pending, to run again.
	State  job.State
	Result json.RawMessage   // nil: none
	Status job.OutcomeStatus // ok, warning or error; empty: the job runs again. For a waiting job, the status that it will have

	// Reason is the job's reason: ok, children, error and so on. For a pending job it is retry after an error, retry_later after a Snooze,
	// or empty if Claim.Context ended in a shutdown and the job was handed back.
	Reason     job.Reason
	Err        error          // the handler's error or panic, or why its outcome was rejected; nil: none. After an error no next step follows
	Class      job.ErrorClass // of Err
	Code       string         // of Err: an SQLSTATE, or the handler's code; empty: none
	RetryAfter *time.Duration // the wait that Err requests; nil: the kind's backoff
	Snooze     *Snooze        // the wait that the handler requested; nil: none

	Next     *job.Submission  // the step of Then; nil: none
	Children []job.Submission // of FanOut
	Parts    int              // of Deferred
	FailFast bool
	Join     []job.Step // the step of Join, and those that a chain plans after it
	EndChain bool       // the remaining steps of the chain do not follow
	Undo     []job.Step // of Outcome.OnFailure and OnFailureOrCancel, the latest first

	Progress    []job.Progress    // each call of Job.Progress and Job.Message, in order
	Events      []job.Event       // each call of Job.Emit, in order: Event, Level, Message and Fields are set
	Checkpoints []json.RawMessage // each call of Job.Checkpoint, and of Job.Write with a checkpoint, in order
	Batches     []Batch           // each call of Job.Write, in order. Call does not run them

	// InTx lists the functions of Outcome.InTx, one for each call. Call does not run them; Write does.
	InTx []func(ctx context.Context, tx pgx.Tx) error
	// Statements lists the statements of Outcome.Write. Call does not run them; Write does.
	Statements []Statement

	t      testing.TB
	kind   string
	writes work.Writes
}

// Snooze is a wait before a job runs again, without a result.
type Snooze struct {
	Wait    time.Duration
	Backoff bool // the wait grows with every snooze of the job
	Why     string
}

// Messages returns the texts of Job.Message.
func (r Run) Messages() (list []string) {
	for _, p := range r.Progress {
		if p.Message != nil {
			list = append(list, *p.Message)
		}
	}
	return list
}

// Statement is one statement of Outcome.Write or Job.Write, with the arguments that the handler passed.
type Statement struct {
	SQL  string
	Args []any
}

// Batch is one call of Job.Write.
type Batch struct {
	Statements []Statement
	Checkpoint json.RawMessage // nil: none
}

// statements returns the statements among writes.
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

// RequireState fails the test at once unless the job's state is want.
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

// Call calls a handler once, on the test's goroutine, without a database or a pod, and returns a record of the call. claim is the handler's
// view of its job: at most one, by default a first attempt. The arguments are encoded and decoded like those of a stored job. If they
// cannot be encoded, the test fails at once.
//
// A panic of the handler becomes its error, as on a pod. Call does not check the kinds and lanes of next steps and children. Middleware and
// options of [runner.Handle] do not apply: set Claim.MaxAttempts instead of [runner.Retry], and end Claim.Context instead of
// [runner.Timeout]. [runner.Job.Tx] returns an error because it needs a database: test such a handler with [New].
func Call[A job.Args](t testing.TB, handler runner.Func[A], args A, claim ...Claim) Run {
	t.Helper()
	if len(claim) > 1 {
		t.Fatalf("runnertest: Call takes one Claim at most, not %d", len(claim))
	}
	var c Claim
	if len(claim) == 1 {
		c = claim[0]
	}
	return call(t, func(r *runner.Runner) string {
		if raw, ok := any(handler).(runner.Func[runner.Raw]); ok {
			runner.HandleRaw(r, args.Kind(), raw)
			return args.Kind()
		}
		runner.Handle(r, handler)
		return (*new(A)).Kind()
	}, args, c)
}

// call does the work of [Call] for the handler that register registers. register returns its kind.
func call(t testing.TB, register func(*runner.Runner) string, args job.Args, c Claim) Run {
	t.Helper()
	must := func(err error, doing string) {
		t.Helper()
		if err != nil {
			t.Fatalf("runnertest: %s: %v", doing, err)
		}
	}
	r, err := runner.NewRemote(runner.RemoteOptions{Name: "runnertest", Logger: slog.New(slog.DiscardHandler)})
	must(err, "make a runner without a database")
	defer r.Close()
	kind, pod := register(r), inside.Of(r).Pod
	encoded, err := work.EncodeArgs(kind, args)
	must(err, "encode the args")
	attempts := engine.Attempts{Default: c.MaxAttempts == 0}
	orElse(&c.MaxAttempts, pod.Opts.MaxAttempts)
	j, w, err := c.job(kind, encoded)
	must(err, "make the job")
	ctx := c.Context
	if ctx == nil {
		ctx = t.Context()
	}
	o, failed := perform(func() (*work.Outcome, error) { return pod.Kinds[kind].Run(ctx, j) })
	attempts.This, attempts.Max = j.Claimed.Attempt, j.MaxAttempts
	run := conclude(pod.Engine, o, failed, context.Cause(ctx), attempts)
	run.t, run.kind = t, kind
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	run.Progress, run.Events, run.Checkpoints, run.Batches = w.progress, w.events, w.checkpoints, w.batches
	return run
}

// perform calls a handler. A panic becomes its error. runtime.Goexit, which a failing test calls, ends the test.
func perform(run func() (*work.Outcome, error)) (o *work.Outcome, err error) {
	defer guard.Recover(&err)
	if o, err = run(); err != nil {
		work.ReadError(err) // a panic in it counts as the handler's
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
	case errors.Is(cause, job.ErrCancelled): // regardless of the handler's return
		return Run{State: job.Cancelled, Status: job.Error, Reason: job.ReasonCancelled, Err: err}
	case errors.Is(cause, job.ErrStopped):
		return Run{State: job.Cancelled, Status: job.Error, Reason: job.ReasonStopped, Err: err}
	case err != nil && engine.HandedBack(cause) != "":
		return Run{State: job.Pending, Err: err}
	case err != nil:
		f := engine.Judge(err, cause, attempts)
		end := f.Ending()
		run = Run{State: end.State, Status: end.Outcome, Reason: end.Reason, Err: f.Err, Class: end.Class, Code: end.Code}
		if f.Again {
			run.State, run.Status, run.Reason, run.RetryAfter = job.Pending, "", job.ReasonRetry, f.After
		}
	case o.Snooze != nil:
		run.State, run.Reason = job.Pending, job.ReasonRetryLater
		run.Snooze = &Snooze{o.Snooze.Wait, o.Snooze.Backoff, o.Snooze.Why}
	case o.Fan != nil && len(o.Fan.Children)+o.Fan.Parts > 0:
		run.State, run.Reason, run.Status, run.Result = job.Waiting, job.ReasonChildren, o.Status, o.Result
	default:
		run.State, run.Reason, run.Status, run.Result = job.Succeeded, job.ReasonOK, o.Status, o.Result
	}
	return run
}

// follow records the next step or the fan-out, and rejects it as the engine does. It treats all kinds as known.
func (r *Run) follow(e *engine.Engine, o *work.Outcome) error {
	r.EndChain, r.Undo = o.EndChain, work.Describe(o.Undo)
	for i := range o.Undo {
		o.Undo[i].Foreign = true
	}
	if o.Next != nil {
		next := o.Next.Describe()
		r.Next, o.Next.Foreign = &next, true
	}
	if o.Fan != nil {
		r.Parts, r.FailFast, r.Join = o.Fan.Parts, o.Fan.FailFast, work.Describe(o.Fan.Join)
		for _, child := range o.Fan.Children {
			r.Children = append(r.Children, child.Describe())
			child.Foreign = true
		}
		for i := range o.Fan.Join {
			o.Fan.Join[i].Foreign = true
		}
	}
	return job.Permanent(e.CheckOutcome(o))
}

// job makes the claim and the writer that receives its writes.
func (c Claim) job(kind string, args json.RawMessage) (*work.Job, *writer, error) {
	now := time.Now()
	orElse(&c.ID, 1)
	orElse(&c.PipelineID, c.ID)
	orElse(&c.Lane, job.DefaultLane)
	orElse(&c.Attempt, 1)
	orElse(&c.Fence, 1)
	orElse(&c.CreatedAt, now)
	orElse(&c.ClaimedAt, now)
	orElse(&c.Boot, "runnertest")
	orElse(&c.PodName, "runnertest")
	orElse(&c.Token, "token")
	priority := job.DefaultPriority
	if c.Priority != nil {
		priority = *c.Priority
	}
	w := &writer{id: c.ID, token: c.Token, failure: c.Failure, joins: c.Branches != nil}
	for i, b := range c.Branches {
		if b.No == 0 && b.Part == "" {
			b.No = i + 1
		}
		if orElse(&b.State, job.Succeeded); b.State == job.Succeeded {
			orElse(&b.Outcome, job.OK)
		}
		w.branches = append(w.branches, b)
	}
	lease := job.Lease{JobID: c.ID, Fence: c.Fence, Pod: c.Boot}
	j := &work.Job{Pod: c.PodName, Writer: w, MaxAttempts: c.MaxAttempts, Lease: lease, Claimed: store.Claimed{
		ID: c.ID, Kind: kind, Lane: c.Lane, Subject: c.Subject, Args: args, PipelineID: c.PipelineID, Step: c.Step, Submitter: c.SubmittedBy,
		Priority: priority, Fence: c.Fence, Attempt: c.Attempt, Crashes: c.Crashes, Snoozes: c.Snoozes, CreatedAt: c.CreatedAt, ClaimedAt: c.ClaimedAt,
		Path: "poll",
	}}
	var err error
	if w.previous, err = work.EncodeResult(c.PreviousResult); err != nil {
		return nil, nil, err
	}
	j.Claimed.ParentID = new(int64) // makes Branches ask the writer
	j.Claimed.Checkpoint, err = work.EncodeResult(c.Checkpoint)
	return j, w, err
}

// orElse sets an empty field to a default.
func orElse[T comparable](field *T, value T) {
	var empty T
	if *field == empty {
		*field = value
	}
}
