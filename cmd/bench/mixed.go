package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// mixed measures how long a job waits for its handler while other jobs arrive at a steady rate below the pod's capacity.
func (b *lab) mixed(ctx context.Context) (l line, err error) {
	const enqueuers = 16
	l = line{What: fmt.Sprintf("one process submits no-op jobs one by one and runs them, default options; capacity: %d submitters without a pause; then arrivals at exponential intervals (open loop), from the time each was due until its handler starts", enqueuers),
		Goal: "no target set; as fast as an idle pod (handoff: enqueue to start) up to 50 % of capacity"}
	g, err := b.rig(ctx, runner.Options{})
	if err != nil {
		return l, err
	}
	defer g.close()
	var seen waits
	runner.Handle(g.r, seen.handle)
	g.start(ctx)

	b.printf("mixed: capacity")
	began := time.Now()
	total, err := g.saturate(ctx, enqueuers, b.length(5*time.Second))
	if err != nil {
		return l, err
	}
	if err := g.drained(ctx); err != nil {
		return l, err
	}
	capacity := float64(total) / time.Since(began).Seconds()
	if _, err := seen.take(total); err != nil {
		return l, err
	}
	l.set("capacity jobs/s", capacity)

	for i, percent := range []int{25, 50, 75} {
		if err := g.tidy(ctx); err != nil {
			return l, err
		}
		rate := capacity * float64(percent) / 100
		load := arrivals{N: max(int(rate*b.length(15*time.Second).Seconds()), 1), Seed: uint64(i + 1), Mean: time.Duration(float64(time.Second) / rate)}
		b.printf("mixed: %d %% of capacity, %d jobs", percent, load.N)
		began := time.Now()
		late, err := load.submit(ctx, g.r)
		if err != nil {
			return l, err
		}
		if err := g.drained(ctx); err != nil {
			return l, err
		}
		list, err := seen.take(load.N)
		if err != nil {
			return l, err
		}
		total += load.N
		report(&l, fmt.Sprintf("at %d %% ms", percent), list)
		l.set(fmt.Sprintf("at %d %% jobs/s", percent), float64(load.N)/seen.last.Sub(began).Seconds())
		l.set(fmt.Sprintf("at %d %% submitted late ms p99", percent), quantile(late, 0.99))
	}
	return l, g.succeeded(ctx, total)
}

// saturate submits jobs from several goroutines without pausing for the given time, and returns how many it submitted.
func (g *rig) saturate(ctx context.Context, enqueuers int, length time.Duration) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var submitters sync.WaitGroup
	var n atomic.Int64
	end := time.Now().Add(length)
	for range enqueuers {
		submitters.Go(func() {
			for now := time.Now(); now.Before(end) && ctx.Err() == nil; now = time.Now() {
				if _, err := g.r.Enqueue(ctx, arrival{Due: now.UnixNano()}); err != nil {
					cancel(err)
					return
				}
				n.Add(1)
			}
		})
	}
	submitters.Wait()
	return int(n.Load()), context.Cause(ctx)
}
