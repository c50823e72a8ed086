package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// nap is a job that sleeps for a given time.
type nap struct {
	Lane  int           `json:"lane"`
	Sleep time.Duration `json:"sleep"`
}

func (nap) Kind() string { return "bench.nap" }

// trial is one configuration in which 1 ms jobs are drained.
type trial struct {
	name  string
	pods  int
	slots int // slots per pod; 0 means the default
	limit int // the lane's limit across all pods; 0 means no limit
	jobs  int
	rates []float64
}

// lanes measures the cost of a limit across all pods. It compares limited lanes with pods that have the same number of slots and no limit.
func (b *lab) lanes(ctx context.Context) (l line, err error) {
	rounds := b.size(3)
	l = line{What: fmt.Sprintf("jobs of 1 ms on eight pods in one process (default slots unless stated), from the first start to the last finish, median of %d alternating rounds; checks that no more jobs run at once than the lane allows", rounds),
		Goal: "a lane of 8 slots ≥ 0.9 × eight pods of one slot without a limit; 20 lanes use ≥ 0.8 of their slots"}
	unlimited := &trial{name: "unlimited", pods: 8, jobs: b.size(10_000)}
	eightAlone := &trial{name: "unlimited, 8 pods of 1 slot", pods: 8, slots: 1, jobs: b.size(8000)}
	eight := &trial{name: "lane of 8 slots", pods: 8, limit: 8, jobs: b.size(8000)}
	oneAlone := &trial{name: "unlimited, 1 pod of 1 slot", pods: 1, slots: 1, jobs: b.size(1000)}
	one := &trial{name: "lane of 1 slot", pods: 8, limit: 1, jobs: b.size(1000)}
	all := []*trial{unlimited, eightAlone, eight, oneAlone, one}
	for round := range rounds {
		for i := range all {
			t := all[(i+round)%len(all)]
			rate, err := b.try(ctx, t)
			if err != nil {
				return l, fmt.Errorf("%s: %w", t.name, err)
			}
			t.rates = append(t.rates, rate)
			b.printf("lanes round %d: %s: %.0f jobs/s", round+1, t.name, rate)
		}
	}
	for _, t := range all {
		l.set(t.name+", jobs/s", t.median())
	}
	l.set("8 slots ÷ attainable", eight.median()/eightAlone.median())
	l.set("1 slot ÷ attainable", one.median()/oneAlone.median())
	share, err := b.manyLanes(ctx)
	l.set("20 lanes: share of the slots' time used", share)
	return l, err
}

func (t *trial) median() float64 {
	slices.Sort(t.rates)
	return quantile(t.rates, 0.5)
}

// try runs a trial and returns its rate in jobs per second.
func (b *lab) try(ctx context.Context, t *trial) (rate float64, err error) {
	var c crowd
	f, err := b.rigs(ctx, t.pods, runner.Options{Slots: t.slots}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[nap]) (*runner.Outcome, error) {
			c.enter()
			defer c.leave()
			time.Sleep(j.Args.Sleep)
			return nil, nil
		})
	})
	if err != nil {
		return 0, err
	}
	defer f.close()
	g := f[0]
	if t.limit > 0 {
		if _, err := g.pool.Exec(ctx, `update trapeze.lanes set slots = $1 where name = 'default'`, t.limit); err != nil {
			return 0, err
		}
	}
	if _, err := g.r.EnqueueMany(ctx, copies(nap{Sleep: time.Millisecond}, t.jobs)); err != nil {
		return 0, err
	}
	if err := g.tidy(ctx); err != nil {
		return 0, err
	}
	f.start(ctx)
	if err := g.drained(ctx); err != nil {
		return 0, err
	}
	seconds := time.Since(c.began()).Seconds()
	if most := int(c.most.Load()); t.limit > 0 && most > t.limit {
		return 0, fmt.Errorf("%d jobs ran at once in a lane of %d slots", most, t.limit)
	}
	return float64(t.jobs) / seconds, g.succeeded(ctx, t.jobs)
}

// manyLanes measures 20 lanes with 1, 2, … 20 slots on eight pods of 32 slots, with 40 jobs of 50 ms for each slot. It returns the share of
// the slots' time that jobs used, and an error if a lane exceeded its limit.
func (b *lab) manyLanes(ctx context.Context) (share float64, err error) {
	const lanes, pods, sleep = 20, 8, 50 * time.Millisecond
	each := b.size(40)
	var crowds [lanes]crowd
	var total crowd
	f, err := b.rigs(ctx, pods, runner.Options{Slots: 32}, func(r *runner.Runner) {
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
		return 0, err
	}
	defer f.close()
	g := f[0]
	n, slots := 0, 0
	for i := range lanes {
		name, limit := fmt.Sprintf("lane-%02d", i+1), i+1
		if _, err := g.pool.Exec(ctx, `insert into trapeze.lanes (name, slots) values ($1, $2)`, name, limit); err != nil {
			return 0, err
		}
		jobs := copies(nap{i, sleep}, limit*each)
		if _, err := g.r.EnqueueMany(ctx, jobs, runner.Lane(name)); err != nil {
			return 0, err
		}
		slots += limit
		n += len(jobs)
	}
	if err := g.tidy(ctx); err != nil {
		return 0, err
	}
	f.start(ctx)
	if err := g.drained(ctx); err != nil {
		return 0, err
	}
	seconds := time.Since(total.began()).Seconds()
	for i := range crowds {
		limit, c := int64(i+1), &crowds[i]
		if most := c.most.Load(); most > limit {
			return 0, fmt.Errorf("%d jobs ran at once in a lane of %d slots", most, limit)
		}
		if all := c.all.Load(); all != limit*int64(each) {
			return 0, fmt.Errorf("%d jobs ran in the lane of %d slots, want %d", all, limit, limit*int64(each))
		}
	}
	return float64(n) * sleep.Seconds() / (seconds * float64(slots)), g.succeeded(ctx, n)
}
