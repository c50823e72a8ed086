package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// deadRows measures a pod's performance while another connection holds a snapshot, so that dead rows cannot be removed.
func (b *lab) deadRows(ctx context.Context) (l line, err error) {
	n, more := b.size(300_000), b.size(20_000)
	l = line{What: fmt.Sprintf("a snapshot is held open while one pod with 500 slots runs %d jobs, whose dead rows are kept; then single submissions, chains of five one at a time, and %d more jobs; then the same after the snapshot is released and the tables are vacuumed", n, more),
		Goal: "the same with and without the snapshot"}
	g, err := b.rig(ctx, runner.Options{Slots: 500})
	if err != nil {
		return l, err
	}
	defer g.close()
	began, ended := make(chan time.Time, 8), make(chan struct{}, 8)
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		began <- time.Now()
		if j.Args.Left == 0 {
			ended <- struct{}{}
			return nil, nil
		}
		return runner.Then(step{Left: j.Args.Left - 1}), nil
	})
	g.start(ctx)
	release, err := g.holdSnapshot(ctx)
	if err != nil {
		return l, err
	}
	defer release()
	if err := g.through(ctx, n); err != nil {
		return l, err
	}
	for _, when := range []string{"held", "released"} {
		var first, gaps []float64
		for range b.size(50) {
			at := time.Now()
			if _, err := g.r.Enqueue(ctx, step{Left: 4}); err != nil {
				return l, err
			}
			for i := range 5 {
				select {
				case now := <-began:
					if i == 0 {
						first = append(first, ms(now.Sub(at)))
					} else {
						gaps = append(gaps, ms(now.Sub(at)))
					}
					at = now
				case <-ctx.Done():
					return l, ctx.Err()
				}
			}
			<-ended
		}
		report(&l, when+", enqueue to start ms", first)
		report(&l, when+", hand-off gap ms", gaps)
		at := time.Now()
		if err := g.through(ctx, more); err != nil {
			return l, err
		}
		l.set(when+", enqueue and drain jobs/s", float64(more)/time.Since(at).Seconds())
		release()
		if err := g.tidy(ctx); err != nil {
			return l, err
		}
	}
	return l, nil
}

// through submits n empty jobs and waits until they have finished.
func (g *rig) through(ctx context.Context, n int) error {
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return err
	}
	return g.drained(ctx)
}
