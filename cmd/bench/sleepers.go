package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// oneSecond is a job that sleeps for a second. waiter is a job that waits until it is released.
type (
	oneSecond struct{}
	waiter    struct{}
)

func (oneSecond) Kind() string { return "bench.one-second" }
func (waiter) Kind() string    { return "bench.waiter" }

// sleepers measures the cost of ten thousand running jobs that do nothing but wait.
func (b *lab) sleepers(ctx context.Context) (l line, err error) {
	n := b.size(10_000)
	l = line{What: fmt.Sprintf("%d jobs that sleep for 1 s, on one pod with as many slots, from the start of the pod until all have finished; then as many that are held for longer than a lease while a second pod watches: goroutines, and memory (heap and stacks in use after a garbage collection) per job", n),
		Goal: "no target set; 1 s plus the time of the claims; no job is taken over"}
	if err := b.sleepOnce(ctx, &l, n); err != nil {
		return l, err
	}
	return l, b.holdOnce(ctx, &l, n)
}

func (b *lab) sleepOnce(ctx context.Context, l *line, n int) error {
	g, err := b.rig(ctx, runner.Options{Slots: n})
	if err != nil {
		return err
	}
	defer g.close()
	var at crowd
	runner.Handle(g.r, func(ctx context.Context, _ *runner.Job[oneSecond]) (*runner.Outcome, error) {
		at.enter()
		defer at.leave()
		select {
		case <-time.After(time.Second):
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	if _, err := g.r.EnqueueMany(ctx, copies(oneSecond{}, n)); err != nil {
		return err
	}
	if err := g.tidy(ctx); err != nil {
		return err
	}
	b.printf("sleepers: %d sleep", n)
	began := time.Now()
	g.start(ctx)
	if err := g.drained(ctx); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	l.set("seconds until all ended", seconds)
	l.set("most running at once", float64(at.most.Load()))
	return g.succeeded(ctx, n)
}

func (b *lab) holdOnce(ctx context.Context, l *line, n int) error {
	g, err := b.rig(ctx, runner.Options{Slots: n})
	if err != nil {
		return err
	}
	defer g.close()
	letGo := make(chan struct{})
	var at crowd
	runner.Handle(g.r, func(ctx context.Context, _ *runner.Job[waiter]) (*runner.Outcome, error) {
		at.enter()
		defer at.leave()
		select {
		case <-letGo:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	g.start(ctx)
	watcher, err := g.second(ctx, runner.Options{Disabled: true}) // a second pod that takes over jobs if their lease is not renewed
	if err != nil {
		return err
	}
	defer watcher.close()
	goroutines, bytes := runtime.NumGoroutine(), inUse()
	if _, err := g.r.EnqueueMany(ctx, copies(waiter{}, n)); err != nil {
		return err
	}
	b.printf("sleepers: %d held", n)
	err = until(ctx, time.Minute, "all of them run", func() (bool, error) { return at.now.Load() == int64(n), nil })
	if err != nil {
		return err
	}
	l.set("goroutines at the peak", float64(runtime.NumGoroutine()))
	l.set("goroutines a running job", float64(runtime.NumGoroutine()-goroutines)/float64(n))
	l.set("bytes a running job", float64(inUse()-bytes)/float64(n))
	if err := g.renewedForALease(ctx); err != nil {
		return err
	}
	still := int(at.now.Load())
	close(letGo)
	if still != n {
		return fmt.Errorf("%d of %d jobs were still running after a lease", still, n)
	}
	if err := g.drained(ctx); err != nil {
		return err
	}
	return g.endedAtFirstClaim(ctx, n) // no job was taken over
}

// renewedForALease waits until the pod's lease has been extended by more than its duration. Without renewals, the lease would have expired
// by then.
func (g *rig) renewedForALease(ctx context.Context) error {
	const lease = 8 * time.Second
	read := func() (until time.Time, err error) {
		err = g.pool.QueryRow(ctx, `select lease_until from trapeze.pods where boot = $1 and closed_at is null`, g.r.Boot()).Scan(&until)
		return until, err
	}
	first, err := read()
	if err != nil {
		return err
	}
	return until(ctx, 3*lease, "the lease was renewed for longer than a lease", func() (bool, error) {
		now, err := read()
		return now.Sub(first) > lease, err
	})
}

// second starts another pod on the same database.
func (g *rig) second(ctx context.Context, o runner.Options) (*rig, error) {
	pool, r, err := route{}.runner(ctx, g.url, o)
	if err != nil {
		return nil, err
	}
	other := &rig{url: g.url, pool: pool, r: r, end: []func(){pool.Close, r.Close}}
	other.start(ctx)
	return other, nil
}

// inUse returns the memory used by objects and stacks after a garbage collection.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // frees what finalizers and pools released in the first collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// until checks a condition every 20 ms until it is true.
func until(ctx context.Context, atMost time.Duration, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, errors.New("timed out after "+atMost.String()+": "+what))
	defer cancel()
	for {
		if yes, err := is(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
