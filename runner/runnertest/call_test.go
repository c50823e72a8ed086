package runnertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

type claim = runnertest.CallOptions

// returns creates a handler that always returns o and err.
func returns(o *runner.Outcome, err error) runner.Func[step] {
	return func(context.Context, *runner.Job[step]) (*runner.Outcome, error) { return o, err }
}

func TestCallResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler runner.Func[step]
		claim   claim
		state   job.State
		reason  job.Reason
		class   job.ErrorClass
	}{
		"nothing":      {returns(nil, nil), claim{}, job.Succeeded, job.ReasonOK, ""},
		"result":       {returns(runner.Done(1), nil), claim{}, job.Succeeded, job.ReasonOK, ""},
		"first error":  {returns(nil, errors.New("no")), claim{}, job.Pending, job.ReasonRetry, job.ClassError},
		"fourth error": {returns(nil, errors.New("no")), claim{Attempt: 4}, job.Pending, job.ReasonRetry, job.ClassError},
		"last error":   {returns(nil, errors.New("no")), claim{Attempt: 5}, job.Failed, job.ReasonAttemptsExhausted, job.ClassError},
		"only attempt": {returns(nil, errors.New("no")), claim{MaxAttempts: 1}, job.Failed, job.ReasonError, job.ClassError},
		"permanent":    {returns(nil, runner.Permanent(errors.New("no"))), claim{}, job.Failed, job.ReasonError, job.ClassError},
		"retryable":    {returns(nil, runner.Retryable(errors.New("no"))), claim{Attempt: 9}, job.Pending, job.ReasonRetry, job.ClassError},
		"retryable, max": {returns(nil, runner.Retryable(errors.New("no"))), claim{Attempt: 5, MaxAttempts: 5},
			job.Failed, job.ReasonAttemptsExhausted, job.ClassError},
		"panic": {func(context.Context, *runner.Job[step]) (*runner.Outcome, error) { panic("oh") }, claim{Attempt: 5},
			job.Failed, job.ReasonAttemptsExhausted, job.ClassPanic},
		"snooze":           {returns(runner.Snooze(time.Hour, "closed"), nil), claim{}, job.Pending, job.ReasonSnooze, ""},
		"snooze with InTx": {returns(runner.Snooze(time.Hour, "closed").InTx(leave("x")), nil), claim{}, job.Failed, job.ReasonError, job.ClassError},
		"fan-out":          {returns(runner.FanOut(step{}), nil), claim{}, job.Waiting, job.ReasonChildren, ""},
		"empty fan-out":    {returns(runner.FanOut(), nil), claim{}, job.Succeeded, job.ReasonOK, ""},
		"deferred":         {tokened(runner.Deferred(2)), claim{}, job.Waiting, job.ReasonChildren, ""},
		"earlier token":    {returns(runner.Deferred(2), nil), claim{Token: "t"}, job.Waiting, job.ReasonChildren, ""},
		"no token":         {returns(runner.Deferred(2), nil), claim{}, job.Pending, job.ReasonRetry, job.ClassError},
		"no next":          {returns(runner.Then(nil), nil), claim{}, job.Failed, job.ReasonInvalidArgs, job.ClassInvalidArgs},
		"bad next":         {returns(runner.Then(last{}, runner.Submitter("ann")), nil), claim{}, job.Failed, job.ReasonError, job.ClassError},
		"bad result":       {returns(runner.Done(func() {}), nil), claim{}, job.Failed, job.ReasonInvalidArgs, job.ClassInvalidArgs},
		"timeout":          {returns(nil, context.Canceled), claim{Context: endedContext(job.ErrTimeout), MaxAttempts: 1}, job.Failed, job.ReasonTimeout, job.ClassTimeout},
		"cancelled":        {returns(runner.Then(last{}), nil), claim{Context: endedContext(job.ErrCancelled)}, job.Cancelled, job.ReasonCancelled, ""},
		"stopped":          {returns(nil, context.Canceled), claim{Context: endedContext(job.ErrForceCancelled)}, job.Cancelled, job.ReasonForceCancelled, ""},
		"shutdown":         {returns(nil, context.Canceled), claim{Context: endedContext(job.ErrShutdown), MaxAttempts: 1}, job.Pending, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			run := runnertest.Call(t, c.handler, step{}, c.claim)
			is.Equal(run.State, c.state)
			is.Equal(run.Reason, c.reason)
			is.Equal(run.Class, c.class)
			is.Equal(run.Err != nil, c.class != "" || name == "stopped" || name == "shutdown") // errors are kept
			if run.State != job.Waiting && run.State != job.Succeeded {
				is.True(run.Next == nil && run.Children == nil) // the job has neither a next step nor children
			}
		})
	}
}

// ended returns a context that is already cancelled with the given cause.
func endedContext(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// tokened returns a handler that asks for its job's token.
func tokened(o *runner.Outcome) runner.Func[step] {
	return func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		_, err := j.Token(ctx)
		return o, err
	}
}

// Call must report the same outcome that a pod would record for the job.
func TestCallAgreesWithAPod(t *testing.T) {
	t.Parallel()
	handlers := map[string]runner.Func[step]{
		"done":     returns(runner.Done("x").Warning(), nil),
		"error":    returns(nil, job.Code("declined", errors.New("no"))),
		"final":    returns(nil, runner.Permanent(errors.New("no"))),
		"args":     returns(nil, fmt.Errorf("%w: no", job.ErrInvalidArgs)),
		"panic":    func(context.Context, *runner.Job[step]) (*runner.Outcome, error) { panic("oh") },
		"snooze":   returns(runner.Snooze(time.Hour, "closed"), nil),
		"fan-out":  returns(runner.FanOut(runner.With(last{}, runner.NeedsApproval())), nil),
		"deferred": tokened(runner.Deferred(1).Warning()),
		"no token": returns(runner.Deferred(1), nil),
		"then":     returns(runner.Then(last{}, runner.Pipeline("x")), nil),
		"large":    returns(runner.Done(strings.Repeat("x", 2<<20)), nil),
	}
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
			return handlers[j.Args.Name](ctx, j)
		})
		runner.Handle(r, func(context.Context, *runner.Job[last]) (*runner.Outcome, error) { return nil, nil })
	})
	ids := map[string]int64{}
	for name := range handlers {
		ids[name] = h.Enqueue(step{Name: name}, runner.MaxAttempts(2))
	}
	h.RunUntilIdle()
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			run, on := runnertest.Call(t, handler, step{Name: name}, claim{MaxAttempts: 2}), h.Job(ids[name])
			is.Equal(run.State, on.State)
			is.Equal(run.Reason, valueOf(on.Reason))
			if on.State != job.Waiting { // the stored job does not have an outcome yet
				is.Equal(run.Status, valueOf(on.Outcome))
			}
			is.Equal(string(run.Result), string(on.Result))
			if on.State == job.Failed {
				is.Equal(run.Class, valueOf(on.ErrorClass))
				is.Equal(run.Code, valueOf(on.ErrorCode))
			}
		})
	}
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func TestCallReturnsWhatFollows(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	run := runnertest.Call(t, returns(runner.Then(last{step{Name: "b"}}, runner.Delay(time.Hour), runner.Subject("s"), runner.Key("k")).Result("r").Warning(), nil), step{})
	run.RequireState(job.Succeeded)
	is.Equal(run.Next.Kind, "last")
	is.Equal(string(run.Next.Args), `{"Name":"b"}`)
	is.Equal(run.Next.Delay, time.Hour)
	is.Equal(*run.Next.Subject, "s")
	is.Equal(*run.Next.Key, "k")
	is.True(!run.Next.AllowUnregistered) // AllowUnregistered is reported as the handler set it
	is.Equal(string(run.Result), `"r"`)
	is.Equal(run.Status, job.Warning)

	run = runnertest.Call(t, returns(runner.FanOut(step{Name: "1"}, runner.With(step{Name: "2"}, runner.Lane("slow"))).FailFast().
		Join(runner.Chain(last{}, runner.Raw{Name: "mail"}), runner.Priority(3)), nil), step{})
	run.RequireState(job.Waiting)
	is.Equal(len(run.Children), 2)
	is.Equal(string(run.Children[0].Args), `{"Name":"1"}`)
	is.Equal(run.Children[1].Lane, "slow")
	is.True(run.FailFast)
	is.Equal(len(run.Join), 2) // the join and the step after it
	is.Equal(run.Join[0].Kind, "last")
	is.Equal(*run.Join[0].Priority, 3)
	is.Equal(run.Join[1].Kind, "mail")

	run = runnertest.Call(t, tokened(runner.Deferred(3)), step{})
	is.Equal(run.Parts, 3)

	run = runnertest.Call(t, returns(runner.Snooze(time.Minute, "closed").WithBackoff(), nil), step{})
	is.Equal(*run.Snooze, runnertest.Snooze{Wait: time.Minute, Backoff: true, Why: "closed"})

	run = runnertest.Call(t, returns(nil, runner.RetryAfter(time.Hour, job.Code("busy", errors.New("no")))), step{})
	is.Equal(*run.RetryAfter, time.Hour)
	is.Equal(run.Code, "busy")
}

func TestCallRecordsHandlerWrites(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	page := &pgx.Batch{}
	page.Queue(`insert into pages values ($1)`, 7)
	run := runnertest.Call(t, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		j.Progress(1, 3)
		j.Message("half")
		return nil, errors.Join(j.Emit(ctx, "seen", "", "a thing", map[string]int{"n": 1}), j.Emit(ctx, "kept", "warn", "another", nil),
			j.Checkpoint(ctx, 1), j.Checkpoint(ctx, "two"), j.Write(ctx, 3, page), j.Write(ctx, nil, page))
	}, step{})
	run.RequireState(job.Succeeded)
	is.Equal(len(run.Progress), 2)
	is.Equal(*run.Progress[0].Done, int64(1))
	is.Equal(*run.Progress[0].Total, int64(3))
	is.Equal(run.Messages(), []string{"half"})
	is.Equal(len(run.Events), 2)
	is.Equal(run.Events[0].Event, "seen")
	is.Equal(run.Events[0].Level, "info")
	is.Equal(*run.Events[0].Message, "a thing")
	is.Equal(string(run.Events[0].Fields), `{"n":1}`)
	is.Equal(run.Events[1].Level, "warn")
	is.Equal(run.Checkpoints, []json.RawMessage{json.RawMessage("1"), json.RawMessage(`"two"`), json.RawMessage("3")})
	written := []runnertest.Statement{{SQL: `insert into pages values ($1)`, Args: []any{7}}}
	is.Equal(run.Batches, []runnertest.Batch{{Statements: written, Checkpoint: json.RawMessage("3")}, {Statements: written}})

	run = runnertest.Call(t, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		commit := &pgx.Batch{}
		commit.Queue(`commit`)
		is.True(errors.Is(j.Write(ctx, nil, commit), job.ErrInvalid)) // a pod refuses it, too
		return nil, runner.Permanent(j.Emit(ctx, "job.mine", "", "", nil))
	}, step{})
	is.True(errors.Is(run.Err, job.ErrInvalid)) // a pod refuses it, too
}

func TestCallWithLeftoverGoroutine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var left *runner.Job[step]
	run := runnertest.Call(t, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		left = j
		return nil, nil
	}, step{})
	left.Progress(1, 2)
	is.True(errors.Is(left.Emit(t.Context(), "late", "", "", nil), job.ErrLeaseLost)) // as on a real pod
	is.True(errors.Is(left.Checkpoint(t.Context(), 1), job.ErrLeaseLost))
	is.True(errors.Is(left.Write(t.Context(), 1, nil), job.ErrLeaseLost))
	is.Equal(len(run.Progress)+len(run.Events)+len(run.Checkpoints)+len(run.Batches), 0)
}

func TestCallInTestTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	run := runnertest.Call(t, returns(runner.Done(nil).InTx(leave("a")).InTx(leave("b")), nil), step{})
	run.RequireState(job.Succeeded)
	is.Equal(len(run.InTx), 2)
	is.Equal(count(t, pool, "a"), 0) // Call does not run the functions
	is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return run.Write(t.Context(), tx) }))
	is.Equal(count(t, pool, "a"), 1)
	is.Equal(count(t, pool, "b"), 1)
}

func TestCallOfDatabaseHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	run := runnertest.Call(t, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		return nil, j.Tx(ctx, func(pgx.Tx) error { return nil }, nil)
	}, step{})
	is.Equal(run.State, job.Failed)
	is.True(strings.Contains(run.Err.Error(), "test this handler with runnertest.New"))
}

func TestCallArgumentEncoding(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	seen := time.Now()
	run := runnertest.Call(t, func(_ context.Context, j *runner.Job[moment]) (*runner.Outcome, error) {
		seen = j.Args.At
		is.Equal(j.Args.hidden, 0) // unexported fields are not stored
		return nil, nil
	}, moment{At: seen, hidden: 1})
	run.RequireState(job.Succeeded)
	is.True(seen == seen.Round(0)) // the time has no monotonic clock reading
	raw := runnertest.Call(t, func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.Done(j.Kind() + string(j.Args.JSON)), nil
	}, runner.Raw{Name: "mail", JSON: json.RawMessage(`{"to": 1}`)})
	is.Equal(string(raw.Result), `"mail{\"to\":1}"`)
	is.True(strings.Contains(failing(t, func(t testing.TB) { runnertest.Call(t, runner.Func[broken](succeed), broken{}) }), "encode the args"))
}

type moment struct {
	At     time.Time
	hidden int
}

func (moment) Kind() string { return "moment" }

type broken struct{ C chan int }

func (broken) Kind() string { return "broken" }

func succeed(context.Context, *runner.Job[broken]) (*runner.Outcome, error) { return nil, nil }

func TestCallFailureMessages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	said := failing(t, func(t testing.TB) {
		runnertest.Call(t, returns(nil, runner.Permanent(errors.New("no money"))), step{}).RequireState(job.Succeeded)
	})
	is.Equal(said, "runnertest: the job (step) would be failed, want succeeded: error: no money")
	said = failing(t, func(t testing.TB) {
		runnertest.Call(t, returns(nil, nil), step{}, claim{}, claim{})
	})
	is.Equal(said, "runnertest: Call takes at most one Claim, got 2")
	said = failing(t, func(t testing.TB) { runnertest.Call[step](t, nil, step{}) })
	is.Equal(said, `runnertest: invalid request: the handler of kind "step" is nil`)
}

// full is a claim in which every field has a distinct value.
var full = claim{
	ID: 7, PipelineID: 6, Lane: "money", Subject: "order 7", Key: "tenant", Priority: new(3), Attempt: 2, MaxAttempts: 4, Crashes: 1, Snoozes: 9, Step: 5, Fence: 8,
	CreatedAt: time.Unix(1, 0), ClaimedAt: time.Unix(2, 0), SubmittedBy: "ann", PodID: "pod id", PodName: "pod", Token: "secret",
	PreviousResult: map[string]int{"n": 1}, Branches: []job.Branch{{JSON: json.RawMessage(`1`)}, {State: job.Failed}}, Checkpoint: "half",
	Failure: &job.Failure{JobID: 3, Kind: "ship"}, Context: context.Background(),
}

// This test calls every method of Job, including any added in the future, on a job with default values and on a job with every field set.
func TestJobMethodsWithoutDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for field, value := range reflect.ValueOf(full).Fields() {
		if value.IsZero() {
			t.Errorf("give %s a value in the variable full", field.Name)
		}
	}
	given := map[string]any{
		"ID": int64(7), "Kind": "step", "Lane": "money", "Subject": "order 7", "Key": "tenant", "Priority": 3, "Attempt": 2, "MaxAttempts": 4, "Crashes": 1, "Fence": int64(8),
		"PodID": "pod id", "PodName": "pod", "Snoozes": 9, "PipelineID": int64(6), "Step": 5, "CreatedAt": time.Unix(1, 0), "SubmittedBy": "ann",
		"ClaimedAt": time.Unix(2, 0), "Path": "poll", "PreviousResult": `{"n":1}`, "Branches": "1 succeeded ok 1, 2 failed", "Tx": "error", "Write": nil,
		"Checkpoint": nil, "LastCheckpoint": `"half" true`, "Progress": nil, "Message": nil, "Emit": nil, "Token": "secret",
		"Failure": job.Failure{JobID: 3, Kind: "ship"}, "Context": "a context",
	}
	empty := map[string]any{
		"ID": int64(1), "Kind": "step", "Lane": "default", "Subject": "", "Key": "", "Priority": 10, "Attempt": 1, "MaxAttempts": 5, "Crashes": 0, "Fence": int64(1),
		"PodID": "runnertest", "PodName": "runnertest", "Snoozes": 0, "PipelineID": int64(1), "Step": 0, "CreatedAt": "now", "SubmittedBy": "",
		"ClaimedAt": "now", "Path": "poll", "PreviousResult": "error", "Branches": "error", "Tx": "error", "Write": nil,
		"Checkpoint": nil, "LastCheckpoint": " false", "Progress": nil, "Message": nil, "Emit": nil, "Token": "token",
		"Failure": "error", "Context": "a context",
	}
	for method := range reflect.TypeFor[*runner.Job[step]]().Methods() {
		for _, c := range []struct {
			claim runnertest.CallOptions
			want  map[string]any
		}{{full, given}, {claim{}, empty}} {
			var got any
			run := runnertest.Call(t, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
				got = answer(ctx, t, reflect.ValueOf(j).MethodByName(method.Name), method.Name)
				return nil, nil
			}, step{}, c.claim)
			is.NoErr(run.Err) // no method panics
			if want, ok := c.want[method.Name]; !ok {
				t.Errorf("Job.%s is new: add its results to this test and a field for it to Claim", method.Name)
			} else if err, failed := got.(error); failed {
				is.Equal(want, "error") // a method may fail only if it needs a database or a Claim field that is not set
				advice := strings.Contains(err.Error(), "runnertest.New") || strings.Contains(err.Error(), "Claim")
				if !advice {
					t.Errorf("Job.%s fails with %q, which does not say what to do", method.Name, err)
				}
			} else {
				is.Equal(got, want)
			}
		}
	}
	// Nor may the methods panic on a Job that the test creates itself.
	for method := range reflect.TypeFor[*runner.Job[step]]().Methods() {
		got := answer(t.Context(), t, reflect.ValueOf(&runner.Job[step]{}).MethodByName(method.Name), method.Name)
		if err, failed := got.(error); failed {
			if !strings.Contains(err.Error(), "runnertest.Call") {
				t.Errorf("Job.%s fails with %q, which does not say what to do", method.Name, err)
			}
		}
	}
	// A checkpoint saved during this run becomes the last checkpoint.
	runnertest.Call(t, func(ctx context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		var kept string
		is.NoErr(j.Checkpoint(ctx, "more"))
		found, err := j.LastCheckpoint(&kept)
		is.NoErr(err)
		is.True(found)
		is.Equal(kept, "more")
		return nil, nil
	}, step{}, full)
}

// answer calls one of a job's methods with arguments of the required types. It returns the method's error or, if it succeeds, its result or
// decoded value.
func answer(ctx context.Context, t *testing.T, method reflect.Value, name string) any {
	var in []reflect.Value
	var decoded json.RawMessage
	for of := range method.Type().Ins() {
		switch {
		case of == reflect.TypeFor[context.Context]():
			in = append(in, reflect.ValueOf(ctx))
		case of == reflect.TypeFor[any]():
			in = append(in, reflect.ValueOf(&decoded))
		case of == reflect.TypeFor[*pgx.Batch]():
			in = append(in, reflect.ValueOf(&pgx.Batch{}))
		case of == reflect.TypeFor[func(pgx.Tx) error]():
			in = append(in, reflect.ValueOf(func(pgx.Tx) error { return nil }))
		case of.Kind() == reflect.String && name == "Emit" && len(in) == 2:
			in = append(in, reflect.ValueOf("info"))
		case of.Kind() == reflect.String, of.Kind() == reflect.Int64:
			in = append(in, reflect.ValueOf(map[reflect.Kind]any{reflect.String: "text", reflect.Int64: int64(1)}[of.Kind()]))
		default:
			t.Errorf("Job.%s takes a %s, for which this test has no value", name, of)
			return nil
		}
	}
	var got []any
	for _, out := range method.Call(in) {
		switch v := out.Interface().(type) {
		case nil:
		case error:
			return v
		case context.Context:
			return "a context"
		case iter.Seq2[runner.Branch, error]:
			var all []string
			for b, err := range v {
				if err != nil {
					return err
				}
				all = append(all, strings.TrimSpace(fmt.Sprintf("%d %s %s %s", b.No, b.State, b.Outcome, b.JSON)))
			}
			got = append(got, strings.Join(all, ", "))
		case time.Time:
			if d := time.Since(v); d >= 0 && d < time.Minute {
				return "now"
			}
			got = append(got, v)
		default:
			got = append(got, v)
		}
	}
	if slices.Contains([]string{"PreviousResult", "LastCheckpoint"}, name) {
		return strings.TrimSuffix(fmt.Sprintln(append([]any{string(decoded)}, got...)...), "\n")
	}
	if len(got) == 0 {
		return nil
	}
	return got[0]
}
