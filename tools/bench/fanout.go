package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type fanParent struct {
	Children int `json:"children"`
}

func (fanParent) Kind() string { return "bench.parent" }

type fanChild struct{}

func (fanChild) Kind() string { return "bench.child" }

type fanJoin struct{}

func (fanJoin) Kind() string { return "bench.join" }

// fanOut measures a fan-out of 10,000 empty children, and the join that follows them.
func (b *lab) fanOut(ctx context.Context) (l line, err error) {
	n := b.size(10_000)
	rounds := 5
	l = line{What: fmt.Sprintf("%d no-op children and a join, one pod with 100 slots, medians of %d rounds: from the submission to the start of the join; from the last child's handler to the start of the join; as many separate jobs, from their submission to the last handler", n, rounds),
		Goal: "children at ≥ 0.8 × the rate of separate jobs; the join within 50 ms of the last child"}
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return l, err
	}
	defer g.close()
	var left, last atomic.Int64
	joined, ran := make(chan time.Time, 1), make(chan time.Time, 1)
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[fanParent]) (*runner.Outcome, error) {
		children := make([]job.Args, j.Args.Children)
		for i := range children {
			children[i] = fanChild{}
		}
		return runner.FanOut(children...).Join(fanJoin{}), nil
	})
	runner.Handle(g.r, func(context.Context, *runner.Job[fanChild]) (*runner.Outcome, error) {
		if left.Add(-1) == 0 {
			now := time.Now()
			last.Store(now.UnixNano())
			ran <- now
		}
		return nil, nil
	})
	runner.Handle(g.r, func(ctx context.Context, j *runner.Job[fanJoin]) (*runner.Outcome, error) {
		now := time.Now()
		seen := 0
		for branch, err := range j.Branches(ctx) {
			if err != nil {
				return nil, err
			}
			if branch.State == job.Succeeded {
				seen++
			}
		}
		if seen != n {
			return nil, fmt.Errorf("the join saw %d children of %d", seen, n)
		}
		joined <- now
		return nil, nil
	})
	g.start(ctx)
	var rates, gaps, lone []float64
	for round := range rounds {
		left.Store(int64(n))
		began := time.Now()
		if _, err := g.r.Enqueue(ctx, fanParent{n}); err != nil {
			return l, err
		}
		if _, err := arrived(ctx, ran); err != nil {
			return l, fmt.Errorf("%d children: %w", n, err)
		}
		at, err := arrived(ctx, joined)
		if err != nil {
			return l, fmt.Errorf("the join of %d children: %w", n, err)
		}
		rates = append(rates, float64(n)/at.Sub(began).Seconds())
		gaps = append(gaps, ms(at.Sub(time.Unix(0, last.Load()))))
		if err := g.drained(ctx); err != nil {
			return l, err
		}
		left.Store(int64(n))
		list := make([]job.Args, n)
		for i := range list {
			list[i] = fanChild{}
		}
		began = time.Now()
		if _, err := g.r.EnqueueMany(ctx, list); err != nil {
			return l, err
		}
		if at, err = arrived(ctx, ran); err != nil {
			return l, fmt.Errorf("%d lone jobs: %w", n, err)
		}
		lone = append(lone, float64(n)/at.Sub(began).Seconds())
		if err := g.drained(ctx); err != nil {
			return l, err
		}
		b.printf("fan-out: round %d of %d", round+1, rounds)
	}
	l.set("children/s", median(rates))
	l.set("join after the last child ms", median(gaps))
	l.set("lone jobs/s", median(lone))
	l.set("children ÷ lone jobs", median(rates)/median(lone))
	return l, nil
}

// arrived waits up to two minutes for a channel to deliver a time.
func arrived(ctx context.Context, at <-chan time.Time) (time.Time, error) {
	select {
	case moment := <-at:
		return moment, nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-time.After(2 * time.Minute):
		return time.Time{}, errors.New("not within two minutes")
	}
}
