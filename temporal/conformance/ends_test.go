package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// ends are the cases about the ways a job can end after one run.
var ends = []testCase{
	{name: "a result is stored as the handler returned it", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) { return runner.Done(j.Args.JSON), nil })
		w.start()
		j := w.ended(w.enqueue(of("a", `{"n":12345678901234567890,"text":"Ünï€ \" \\ \n"}`)))
		w.Equal(j.State, job.Succeeded)
		w.Equal(string(j.Result), `{"n":12345678901234567890,"text":"Ünï€ \" \\ \n"}`)
		w.Equal(podtest.ReasonOf(j), job.ReasonOK)
		w.Equal(*j.Outcome, job.OK)
		w.Equal(j.Attempt, 1)
		w.True(j.StartedAt != nil && j.FinishedAt != nil && !j.StartedAt.Before(j.CreatedAt) && !j.FinishedAt.Before(*j.StartedAt))
	}},
	{name: "a job can end without a result", run: func(w *world) {
		w.handle("a", nothing)
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(len(j.Result), 0)
	}},
	{name: "a typed result is read by any process", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.Done(map[string]int{"rows": 7}) }))
		w.start()
		got, err := runner.Result[struct{ Rows int }](w.Context(), w.r, w.enqueue(of("a")))
		w.NoErr(err)
		w.Equal(got.Rows, 7)
	}},
	{name: "a warning is the outcome of a success", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.Done(1).Warning() }))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Succeeded)
		w.Equal(*j.Outcome, job.Warning)
	}},
	{name: "a result of a mebibyte is stored, and a larger one fails the job", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			var n int
			err := json.Unmarshal(j.Args.JSON, &n)
			return runner.Done(strings.Repeat("x", n)), err
		}, runner.Retry(3, soon))
		w.start()
		large := w.ended(w.enqueue(of("a", "1048574"))) // plus two quotes
		w.Equal(large.State, job.Succeeded)
		w.Equal(len(large.Result), 1<<20)
		j := w.ended(w.enqueue(of("a", "1048575")))
		w.Equal(j.State, job.Failed)
		w.Equal(podtest.ReasonOf(j), job.ReasonResultTooLarge)
		w.Equal(*j.ErrorClass, job.ClassUnstorable)
		w.Equal(j.Attempt, 1)
	}},
	{name: "arguments that cannot be decoded fail the job without a retry", run: func(w *world) {
		w.r = w.pod()
		for _, r := range w.runners() {
			runner.Handle(r, func(context.Context, *runner.Job[page]) (*runner.Outcome, error) { return nil, nil }, runner.Retry(3, soon))
		}
		w.start()
		j := w.ended(w.enqueue(of("page", `{"number":"one"}`)))
		w.Equal(j.State, job.Failed)
		w.Equal(podtest.ReasonOf(j), job.ReasonInvalidArgs)
		w.Equal(*j.ErrorClass, job.ClassInvalidArgs)
		w.Equal(j.Attempt, 1)
	}},
	{name: "an error fails the job with its text, class and code", run: func(w *world) {
		w.handle("a", fails(job.Code("card_declined", errors.New("no money"))))
		w.start()
		id := w.enqueue(of("a"))
		j := w.ended(id)
		w.Equal(j.State, job.Failed)
		w.Equal(podtest.ReasonOf(j), job.ReasonError)
		w.Equal(podtest.Message(j), "no money")
		w.Equal(*j.ErrorClass, job.ClassError)
		w.Equal(podtest.Deref(j.ErrorCode), "card_declined")
		_, err := runner.Result[int](w.Context(), w.r, id)
		end, ok := errors.AsType[*job.EndError](err)
		w.True(ok)
		w.Equal(*end, job.EndError{ID: id, State: job.Failed, Reason: job.ReasonError, Message: "no money", Class: job.ClassError, Code: "card_declined"})
	}},
	{name: "a panic fails the attempt with its stack", run: func(w *world) {
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { panic("out of cheese") })
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Failed)
		w.Equal(*j.ErrorClass, job.ClassPanic)
		w.True(strings.Contains(podtest.Message(j), "out of cheese"))
		w.True(strings.Contains(podtest.Message(j), "ends_test.go")) // part of the stack
	}},
	{name: "runtime.Goexit fails the attempt", run: func(w *world) {
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { runtime.Goexit(); return nil, nil })
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Failed)
		w.Equal(*j.ErrorClass, job.ClassPanic)
	}},
	{name: "a run that exceeds its timeout is cancelled with the cause, and fails", run: func(w *world) {
		causes := make(chan error, 1)
		w.handle("a", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}, runner.Timeout(50*time.Millisecond))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.True(errors.Is(receive(w, causes), job.ErrTimeout))
		w.Equal(j.State, job.Failed)
		w.Equal(podtest.ReasonOf(j), job.ReasonTimeout)
		w.Equal(*j.ErrorClass, job.ClassTimeout)
	}},
	{name: "an outcome that is wrong fails the job", run: func(w *world) {
		w.handle("a", returns(func() *runner.Outcome { return runner.Deferred(0) }), runner.Retry(3, soon))
		w.start()
		j := w.ended(w.enqueue(of("a")))
		w.Equal(j.State, job.Failed)
		w.Equal(j.Attempt, 1)
		w.True(strings.Contains(podtest.Message(j), "want at least one part"))
	}},
}

// page is a job with typed arguments.
type page struct{ Number int }

func (page) Kind() string { return "page" }
