package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// drains are the cases about pods that stop or are drained. Package faults kills processes instead.
var drains = []testCase{
	{name: "a pod that stops waits for its handlers", differs: "When a pod stops, its handlers finish, and another pod writes the ends of their jobs", run: func(w *world) {
		hold, open := podtest.Latch(w.T)
		began := make(chan struct{})
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) {
			close(began)
			<-hold
			return runner.Done("finished"), nil
		})
		stop := w.start()
		id := w.enqueue(of("a"))
		receive(w, began)
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		w.wait("the pod drains", func() bool { ready, _ := w.r.Ready(); return !ready })
		open()
		<-stopped
		w.r = w.pod() // reads the job
		if w.temporal() {
			w.Equal(w.get(id).State, job.Running)
			runner.HandleRaw(w.r, "a", fails(errors.New("it ran again")))
			w.start()
			w.ended(id)
		}
		j := w.get(id)
		w.Equal(j.State, job.Succeeded)
		w.Equal(string(j.Result), `"finished"`)
		w.Equal(j.Attempt, 1)
	}},
	{name: "a job whose pod stops runs again on another, without a spent attempt", run: func(w *world) {
		w.o = runner.Options{ShutdownGrace: time.Millisecond}
		stored, causes := make(chan error, 1), make(chan error, 1)
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			stored <- j.Checkpoint(ctx, "half")
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, context.Cause(ctx)
		})
		stop := w.start()
		id := w.enqueue(of("a"))
		w.NoErr(receive(w, stored))
		stop()
		w.True(errors.Is(receive(w, causes), job.ErrShutdown))
		other := w.pod()
		runner.HandleRaw(other, "a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			var at string
			_, err := j.LastCheckpoint(&at)
			return runner.Done(at), err
		})
		podtest.Run(w.T, other)
		w.r = other
		j := w.ended(id)
		w.Equal(j.State, job.Succeeded)
		w.Equal(string(j.Result), `"half"`)
		w.Equal(j.Attempt, 1)
		w.Equal(j.Crashes, 0)
	}},
	{name: "two pods share the jobs, and each job runs once", run: func(w *world) {
		var ran trail
		handler := func(_ context.Context, j *raw) (*runner.Outcome, error) { ran.add("%s", j.Args.JSON); return nil, nil }
		w.handle("a", handler)
		w.start()
		other := w.pod()
		runner.HandleRaw(other, "a", handler)
		podtest.Run(w.T, other)
		ids, err := w.r.EnqueueMany(w.Context(), children("a", 100))
		w.NoErr(err)
		for _, id := range ids {
			w.Equal(w.ended(id).State, job.Succeeded)
		}
		w.Equal(len(ran.all()), 100)
	}},
	{name: "a job waits for a pod that has its handler", differs: "A job without a handler in any pod waits in Temporal, in the state running", run: func(w *world) {
		w.handle("other", nothing)
		w.start()
		id := w.enqueue(of("late"), runner.AllowUnregistered())
		if w.temporal() {
			w.inState(id, job.Running)
		} else {
			w.blocked(id, job.BlockerNoHandler)
		}
		second := w.pod()
		runner.HandleRaw(second, "late", nothing)
		podtest.Run(w.T, second)
		w.Equal(w.ended(id).State, job.Succeeded)
	}},
	{name: "a running job of a drained pod continues", differs: "When a pod is drained, its handlers get `ShutdownGrace`; then their jobs run on other pods", run: func(w *world) {
		w.o = runner.Options{PodName: "first", ShutdownGrace: 300 * time.Millisecond}
		hold, open := podtest.Latch(w.T)
		began, causes := make(chan struct{}), make(chan error, 1)
		w.handle("a", func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			close(began)
			select {
			case <-hold:
				return runner.Done("first"), nil
			case <-ctx.Done():
				causes <- context.Cause(ctx)
				return nil, ctx.Err()
			}
		})
		w.start()
		id := w.enqueue(of("a"))
		receive(w, began)
		w.o = runner.Options{PodName: "second"}
		second := w.pod()
		runner.HandleRaw(second, "a", returns(func() *runner.Outcome { return runner.Done("second") }))
		podtest.Run(w.T, second)
		_, err := w.r.Admin("ana").DrainPod(w.Context(), "first", 0)
		w.NoErr(err)
		want := `"first"`
		if w.temporal() {
			want = `"second"`
			w.True(errors.Is(receive(w, causes), job.ErrShutdown))
		} else {
			open()
		}
		j := w.ended(id)
		w.Equal(string(j.Result), want)
		w.Equal(j.Attempt, 1)
		w.Equal(j.Crashes, 0)
	}},
	{name: "a drained pod starts no jobs", run: func(w *world) {
		w.o = runner.Options{PodName: "first"}
		var first trail
		w.handle("a", func(context.Context, *raw) (*runner.Outcome, error) { first.add("ran"); return nil, nil })
		w.start()
		_, err := w.r.Admin("ana").DrainPod(w.Context(), "first", time.Minute)
		w.NoErr(err)
		w.o = runner.Options{PodName: "second"}
		second := w.pod()
		runner.HandleRaw(second, "a", nothing)
		podtest.Run(w.T, second)
		for range 10 {
			w.Equal(w.ended(w.enqueue(of("a"))).State, job.Succeeded)
		}
		w.Equal(first.String(), "")
		_, err = w.r.Admin("ana").UndrainPod(w.Context(), "first")
		w.NoErr(err)
	}},
}
