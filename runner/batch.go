package runner

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// BatchFunc handles several jobs of one kind in one call. It returns one result per job: results[i] belongs to jobs[i]. It may reorder jobs,
// for example to lock rows in the same order as other calls.
//
// Every job keeps its own claim, fence, attempt and history. Its methods, such as [Job.Write], affect only this job; pass them
// [Job.Context]. The context ctx ends when the contexts of all jobs have ended, with the cause of the last one, so a cancelled job does not
// interrupt the others. If a call has several jobs, ctx contains no values, such as spans; those of each job are in Job.Context. The
// function can be called several times concurrently.
type BatchFunc[A job.Args] func(ctx context.Context, jobs []*Job[A]) []BatchResult

// BatchResult is the outcome of one job of a batch. Its fields have the same meaning as the results of a [Func]. The zero value means that
// the job succeeded without a result.
type BatchResult struct {
	Outcome *Outcome
	Err     error
}

// BatchSize sets the maximum number of jobs per call of a [HandleBatch] function. Default 100.
func BatchSize(n int) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(n >= 1, "BatchSize(%d), want at least 1", n)
		k.batchSize = n
	})
}

// BatchWait sets how long the first job of a batch waits for others before the [HandleBatch] function is called. If d is 0, only jobs that
// start at the same moment share a call. Default 50ms.
func BatchWait(d time.Duration) HandleOption {
	return handleOption(func(k *registered) {
		k.complain(d >= 0, "BatchWait(%s), want 0 or more", d)
		k.batchWait = &d
	})
}

// HandleBatch registers a function that handles jobs of a kind in batches, for example to write their rows with one statement. Jobs that
// start in the same process and have the same [Key] share a call. The function is called when a batch has [BatchSize] jobs, or [BatchWait]
// after the first of them has started. Jobs of different keys are never in the same call.
//
// A job occupies a slot while it waits, so a batch is never larger than the number of slots of its lane and its pod: give the kind a lane,
// and the pod, at least BatchSize slots. [Timeout] and [InactivityTimeout] count from the start of the wait and must be longer than BatchWait.
// Middleware runs for each job, around the wait and the call.
//
// If the function panics, or does not return one result per job, Trapeze calls it again for each job alone, in the same attempt. Only the
// jobs whose second call goes wrong as well fail. A job that has crashed a pod ([Job.Crashes]) is always called alone. A job whose context ends
// while it waits leaves the batch. If it ends during the call, the job ends after the call or after Options.StuckAfter.
//
// HandleBatch panics for the same reasons as [Handle].
func HandleBatch[A job.Args](r *Runner, handler BatchFunc[A], options ...HandleOption) {
	if handler == nil {
		r.mistake("the handler of kind %q is nil", (*new(A)).Kind())
		return
	}
	b := &batches[A]{call: handler, open: map[string]*batch[A]{}, log: r.pod.Log}
	Handle(r, b.handle, slices.Concat(options, []HandleOption{handleOption(func(k *registered) {
		k.batched, b.size, b.wait = true, cmp.Or(k.batchSize, 100), 50*time.Millisecond
		if k.batchWait != nil {
			b.wait = *k.batchWait
		}
		k.complain(k.Timeout == 0 || k.Timeout > b.wait, "Timeout(%s) is not longer than BatchWait(%s)", k.Timeout, b.wait)
		if stale := k.InactivityTimeout; stale != nil {
			k.complain(*stale == 0 || *stale > b.wait, "InactivityTimeout(%s) is not longer than BatchWait(%s)", *stale, b.wait)
		}
	})})...)
}

// batches collects the running jobs of a kind into batches.
type batches[A job.Args] struct {
	call BatchFunc[A]
	size int
	wait time.Duration
	log  *slog.Logger

	mu   sync.Mutex
	open map[string]*batch[A] // the batches that jobs can still join, by key
}

// batch is a group of jobs that share a call. The mutex of batches protects jobs and active until the batch is sealed; after that, jobs
// belongs to the call.
type batch[A job.Args] struct {
	jobs    []*Job[A]
	timer   *time.Timer
	sealed  bool // no job can join or leave
	active  int  // number of jobs whose contexts have not ended, once sealed
	ctx     context.Context
	cancel  context.CancelCauseFunc
	done    chan struct{}           // closed after the call
	results map[*Job[A]]BatchResult // written before done is closed; jobs without a result are called alone
}

// handle is the handler of each job. It returns only after a call that includes the job has returned, because the job must not run twice
// at a time.
func (b *batches[A]) handle(ctx context.Context, j *Job[A]) (*Outcome, error) {
	if j.Crashes() > 0 || ctx.Err() != nil {
		return b.callAlone(ctx, j)
	}
	t := b.join(j)
	select {
	case <-t.done:
	case <-ctx.Done():
		if b.leave(t, j, context.Cause(ctx)) {
			return nil, context.Cause(ctx)
		}
		<-t.done
	}
	if r, ok := t.results[j]; ok {
		return r.Outcome, r.Err
	}
	return b.callAlone(ctx, j)
}

// join adds a job to the open batch of its key, and starts the call if the batch is full.
func (b *batches[A]) join(j *Job[A]) *batch[A] {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.open[j.Key()]
	if t == nil {
		t = &batch[A]{done: make(chan struct{})}
		t.ctx, t.cancel = context.WithCancelCause(context.Background())
		t.timer = time.AfterFunc(b.wait, func() { b.expire(j.Key(), t) })
		b.open[j.Key()] = t
	}
	if t.jobs = append(t.jobs, j); len(t.jobs) == b.size {
		b.seal(j.Key(), t)
		go b.run(t)
	}
	return t
}

// expire starts the call of a batch whose wait is over, unless it has already started.
func (b *batches[A]) expire(key string, t *batch[A]) {
	b.mu.Lock()
	sealed := b.seal(key, t)
	b.mu.Unlock()
	if sealed {
		b.run(t)
	}
}

// seal ends the joining. It reports whether the batch was open. The caller holds the lock.
func (b *batches[A]) seal(key string, t *batch[A]) bool {
	if t.sealed {
		return false
	}
	t.timer.Stop()
	t.sealed, t.active = true, len(t.jobs)
	delete(b.open, key)
	return true
}

// leave is called when a job's context has ended. It removes the job from an open batch, or else reports false. When the contexts of all
// jobs of a sealed batch have ended, it cancels the call.
func (b *batches[A]) leave(t *batch[A], j *Job[A], cause error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.sealed {
		if t.active--; t.active == 0 {
			t.cancel(cause)
		}
		return false
	}
	if t.jobs = slices.DeleteFunc(t.jobs, func(other *Job[A]) bool { return other == j }); len(t.jobs) == 0 {
		b.seal(j.Key(), t)
		t.cancel(nil)
	}
	return true
}

// run calls the function for a sealed batch, and leaves its jobs without results if the call goes wrong. A single job is called by its own
// handler instead, with its own context.
func (b *batches[A]) run(t *batch[A]) {
	defer close(t.done)
	defer t.cancel(nil)
	if len(t.jobs) == 1 {
		return
	}
	n, kind := len(t.jobs), t.jobs[0].Kind()
	var results []BatchResult
	err := routine.Call(func() error { results = b.call(t.ctx, t.jobs); return nil })
	if err == nil && len(results) != n {
		err = wrongResults(len(results), n)
	}
	if err != nil {
		b.log.WarnContext(t.ctx, "call of a batch went wrong: calling the handler for each job alone", telemetry.Kind, kind, telemetry.Jobs, n, telemetry.Err, err)
		return
	}
	t.results = make(map[*Job[A]]BatchResult, n)
	for i, j := range t.jobs {
		t.results[j] = results[i]
	}
}

// callAlone calls the function for one job, on the goroutine of its handler, so that a panic is handled as in [Handle]. It does not call
// the function if the job's context has ended, because the job may already run elsewhere.
func (b *batches[A]) callAlone(ctx context.Context, j *Job[A]) (*Outcome, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	results := b.call(ctx, []*Job[A]{j})
	if len(results) != 1 {
		return nil, wrongResults(len(results), 1)
	}
	return results[0].Outcome, results[0].Err
}

func wrongResults(have, want int) error {
	return fmt.Errorf("the batch handler returned %d results for %d jobs", have, want)
}
