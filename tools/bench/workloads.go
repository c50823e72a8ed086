package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

type noop struct{}

func (noop) Kind() string { return "bench.noop" }

type step struct {
	Left  int   `json:"left"`
	Chain int64 `json:"chain"`
}

func (step) Kind() string { return "bench.step" }

// drain measures how fast a pod drains a backlog of empty jobs.
func (b *lab) drain(ctx context.Context) (l line, err error) {
	n := b.size(100_000)
	l = line{What: "enqueue no-op jobs in calls of 2,000, then start one pod with 100 slots; clock stops when nothing is unfinished in the database",
		Goal: "design's prototype: 58,143 jobs/s, 445 B WAL a job; target ≤ 700 B"}
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return l, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	began := time.Now()
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return l, err
	}
	l.set("bulk enqueue jobs/s", float64(n)/time.Since(began).Seconds())
	e, err := g.workOff(ctx, n)
	if err != nil {
		return l, err
	}
	l.set("drain jobs/s", float64(n)/e.seconds)
	l.set("writing transactions a job", e.xact/float64(n))
	l.set("WAL bytes a job", e.wal/float64(n))
	return l, nil
}

// handoff measures the delay between two steps on an idle pod, and the delay between a submission and the start of its job.
func (b *lab) handoff(ctx context.Context) (l line, err error) {
	n := b.size(300)
	l = line{What: "chains of five steps, one at a time: from one handler start to the next, and from submission to the first start",
		Goal: "gap p50 ≤ 0.8 ms, p99 ≤ 2 ms"}
	g, err := b.rig(ctx, runner.Options{})
	if err != nil {
		return l, err
	}
	defer g.close()
	var mu sync.Mutex
	var starts []time.Time
	ended := make(chan struct{})
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		mu.Lock()
		starts = append(starts, time.Now())
		mu.Unlock()
		if j.Args.Left == 0 {
			ended <- struct{}{}
			return nil, nil
		}
		return runner.Then(step{Left: j.Args.Left - 1}), nil
	})
	g.start(ctx)
	var gaps, first, whole []float64
	for range n {
		starts = starts[:0]
		began := time.Now()
		if _, err := g.r.Enqueue(ctx, step{Left: 4}); err != nil {
			return l, err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return l, ctx.Err()
		}
		mu.Lock()
		first = append(first, ms(starts[0].Sub(began)))
		for i := 1; i < len(starts); i++ {
			gaps = append(gaps, ms(starts[i].Sub(starts[i-1])))
		}
		whole = append(whole, ms(starts[len(starts)-1].Sub(began)))
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	report(&l, "hand-off gap ms", gaps)
	report(&l, "enqueue to start ms", first)
	report(&l, "chain of five ms", whole)
	return l, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func report(l *line, name string, values []float64) {
	slices.Sort(values)
	l.set(name+" p50", quantile(values, 0.50))
	l.set(name+" p95", quantile(values, 0.95))
	l.set(name+" p99", quantile(values, 0.99))
}
