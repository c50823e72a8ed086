package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// arrival is a job that carries the time at which it was due to be submitted.
type arrival struct {
	Due int64 `json:"due"` // Unix nanoseconds on the machine's clock
}

func (arrival) Kind() string { return "bench.arrival" }

// arrivals is an open-loop load: jobs are submitted at predetermined times, whether or not earlier jobs have finished. The same seed always
// produces the same intervals.
type arrivals struct {
	N     int           `json:"n"`
	Seed  uint64        `json:"seed"`
	Least time.Duration `json:"least"` // the constant part of every interval
	Mean  time.Duration `json:"mean"`  // the mean of the exponentially distributed part
}

// submit submits the jobs and returns how late each submission was, in milliseconds.
func (a arrivals) submit(ctx context.Context, r *runner.Runner) (late []float64, err error) {
	random := rand.New(rand.NewPCG(a.Seed, a.Seed))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var calls sync.WaitGroup
	due := time.Now()
	for range a.N {
		due = due.Add(a.Least + time.Duration(random.ExpFloat64()*float64(a.Mean)))
		waitUntil(due)
		if ctx.Err() != nil {
			break
		}
		late = append(late, ms(time.Since(due)))
		args := arrival{Due: due.UnixNano()}
		calls.Go(func() {
			if _, err := r.Enqueue(ctx, args, runner.AllowUnregistered()); err != nil {
				cancel(err)
			}
		})
	}
	calls.Wait()
	slices.Sort(late)
	return late, context.Cause(ctx)
}

// waits collects the delays between each job's due time and the start of its handler, in milliseconds.
type waits struct {
	mu   sync.Mutex
	list []float64
	last time.Time
}

func (w *waits) handle(_ context.Context, j *runner.Job[arrival]) (*runner.Outcome, error) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list, w.last = append(w.list, ms(now.Sub(time.Unix(0, j.Args.Due)))), now
	return nil, nil
}

// all returns the delays since the previous call of all.
func (w *waits) all() (list []float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list, w.list = w.list, nil
	return list
}

// length scales a duration by the lab's scale.
func (b *lab) length(d time.Duration) time.Duration { return time.Duration(float64(d) * b.scale) }
