package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// blockedHead measures what it costs to get past jobs that may not run yet.
func (b *lab) blockedHead(ctx context.Context) (l line, err error) {
	n := b.size(10_000)
	l = line{What: "10,000 free no-op jobs in a lane behind 10,000 of one subject, of which one runs at a time, one pod with 100 slots; beside it the free ones alone",
		Goal: "free jobs ≥ 0.5 × their rate alone"}
	alone, _, err := b.pastHead(ctx, n, 0)
	if err != nil {
		return l, err
	}
	b.say("blocked-head: alone %.2f s", alone)
	behind, ended, err := b.pastHead(ctx, n, n)
	if err != nil {
		return l, err
	}
	l.set("free jobs/s, alone", float64(n)/alone)
	l.set("free jobs/s, behind the head", float64(n)/behind)
	l.set("behind ÷ alone", alone/behind)
	l.set("jobs/s of the head meanwhile", float64(ended)/behind)
	return l, nil
}

// pastHead returns how long n free jobs behind a blocked head took, and how many of the head ended meanwhile.
func (b *lab) pastHead(ctx context.Context, n, head int) (seconds float64, ended int, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return 0, 0, err
	}
	defer g.close()
	var ran atomic.Int64
	all := make(chan struct{})
	runner.Handle(g.r, func(context.Context, *runner.Job[about]) (*runner.Outcome, error) { return nil, nil })
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) {
		if ran.Add(1) == int64(n) {
			close(all)
		}
		return nil, nil
	})
	if _, err := g.r.EnqueueMany(ctx, copies(about{}, head), runner.Subject("hot")); err != nil {
		return 0, 0, err
	}
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return 0, 0, err
	}
	if err := g.tidy(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	g.start(ctx)
	select {
	case <-all:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	for open := true; open; {
		if err := g.pool.QueryRow(ctx, `select exists (select from trapeze.live where kind = $1)`, noop{}.Kind()).Scan(&open); err != nil {
			return 0, 0, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	seconds = time.Since(began).Seconds()
	var free int
	err = g.pool.QueryRow(ctx, `select count(*) filter (where j.kind = $1), count(*) filter (where j.kind = $2)
		from trapeze.done d join trapeze.jobs j using (id) where d.state = 'succeeded'`, noop{}.Kind(), about{}.Kind()).Scan(&free, &ended)
	if err == nil && free != n {
		err = fmt.Errorf("%d of %d free jobs have succeeded", free, n)
	}
	return seconds, ended, err
}
