package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// nap is a job that takes a while without using the processor.
type nap struct {
	Lane  int           `json:"lane"`
	Sleep time.Duration `json:"sleep"`
}

func (nap) Kind() string { return "bench.nap" }

// trial is one way to drain jobs of 1 ms.
type trial struct {
	name  string
	pods  int
	slots int // of a pod; 0: the default
	limit int // of the lane over all pods; 0: none
	jobs  int
	rates []float64
}

// lanes measures what a limit over all pods costs, beside pods that have just as many slots and no limit.
func (b *lab) lanes(ctx context.Context) (l line, err error) {
	rounds := b.size(3)
	l = line{What: fmt.Sprintf("jobs of 1 ms over eight pods of one process (default slots, unless said), from the first start to the last end, median of %d alternating rounds; that no more run at once than the lane allows is checked", rounds),
		Goal: "a lane of 8 slots ≥ 0.9 × eight pods of one slot without a limit"}
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
			b.say("lanes round %d: %s: %.0f jobs/s", round+1, t.name, rate)
		}
	}
	for _, t := range all {
		l.set(t.name+", jobs/s", t.median())
	}
	l.set("8 slots ÷ attainable", eight.median()/eightAlone.median())
	l.set("1 slot ÷ attainable", one.median()/oneAlone.median())
	return l, nil
}

func (t *trial) median() float64 {
	slices.Sort(t.rates)
	return quantile(t.rates, 0.5)
}

// try returns the jobs/s of a trial.
func (b *lab) try(ctx context.Context, t *trial) (rate float64, err error) {
	var c crowd
	f, err := b.fleet(ctx, t.pods, runner.Options{Slots: t.slots}, func(r *runner.Runner) {
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
