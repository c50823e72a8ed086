package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// manyLanes measures lanes with different limits side by side: none is overfull, and none waits for another.
func (b *lab) manyLanes(ctx context.Context) (l line, err error) {
	const lanes, pods, sleep = 20, 8, 50 * time.Millisecond
	each := b.size(40)
	l = line{What: "20 lanes of 1, 2, … 20 slots over eight pods (32 slots each), 40 jobs of 50 ms for each slot, from the first start to the last end; that no lane runs more than its limit at any moment is checked",
		Goal: "no lane over its limit; share of the slots' time that was used ≥ 0.8"}
	var crowds [lanes]crowd
	var total crowd
	f, err := b.fleet(ctx, pods, runner.Options{Slots: 32}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[nap]) (*runner.Outcome, error) {
			c := &crowds[j.Args.Lane]
			c.enter()
			defer c.leave()
			total.enter()
			defer total.leave()
			time.Sleep(j.Args.Sleep)
			return nil, nil
		})
	})
	if err != nil {
		return l, err
	}
	defer f.close()
	g := f[0]
	n, slots := 0, 0
	for i := range lanes {
		name, limit := fmt.Sprintf("lane-%02d", i+1), i+1
		if _, err := g.pool.Exec(ctx, `insert into trapeze.lanes (name, slots) values ($1, $2)`, name, limit); err != nil {
			return l, err
		}
		jobs := copies(nap{i, sleep}, limit*each)
		if _, err := g.r.EnqueueMany(ctx, jobs, runner.Lane(name)); err != nil {
			return l, err
		}
		slots += limit
		n += len(jobs)
	}
	if err := g.tidy(ctx); err != nil {
		return l, err
	}
	f.start(ctx)
	if err := g.drained(ctx); err != nil {
		return l, err
	}
	seconds := time.Since(total.began()).Seconds()
	full := 0
	for i := range crowds {
		limit, c := int64(i+1), &crowds[i]
		if most := c.most.Load(); most > limit {
			return l, fmt.Errorf("%d jobs ran at once in a lane of %d slots", most, limit)
		} else if most == limit {
			full++
		}
		if all := c.all.Load(); all != limit*int64(each) {
			return l, fmt.Errorf("%d jobs ran in the lane of %d slots, want %d", all, limit, limit*int64(each))
		}
	}
	l.set("jobs/s", float64(n)/seconds)
	l.set("share of the slots' time used", float64(n)*sleep.Seconds()/(seconds*float64(slots)))
	l.set("lanes that were full", float64(full))
	l.set("most jobs at once", float64(total.most.Load()))
	return l, g.succeeded(ctx, n)
}
