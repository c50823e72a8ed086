package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/runner"
)

// growthRetired simulates the passing of days. Each round fills one day and then, while jobs run, deletes the day that has become too old.
func (b *lab) growthRetired(ctx context.Context, l *line, h *history) error {
	g := h.g
	pod, err := runner.New(g.pool, growthKeeps)
	if err != nil {
		return err
	}
	p := &rig{pool: g.pool, r: pod, url: g.url, end: []func(){pod.Close}}
	defer p.close()
	runner.Handle(pod, func(context.Context, *runner.Job[arrival]) (*runner.Outcome, error) { return nil, nil })
	load := newSoakLoad(0)
	load.handle(pod)
	p.start(ctx)
	length := max(b.length(10*time.Second), time.Second)
	n, err := p.saturate(ctx, soakSubmitters, length)
	if err != nil {
		return err
	}
	if err := p.drained(ctx); err != nil {
		return err
	}
	load.rate = float64(n) / length.Seconds() / 2
	l.set("sustained: jobs/s, half of capacity", load.rate)

	for round := range growthRounds {
		if err := h.fillDay(ctx); err != nil {
			return err
		}
		var calm, busy []float64
		var gone retired
		err := load.during(ctx, p, func() error {
			if err := soakUntil(ctx, time.Now().Add(length)); err != nil {
				return err
			}
			calm = load.take()
			gone, err = h.retire(ctx)
			busy = load.take()
			return err
		})
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		when := fmt.Sprintf("round %d", round+1)
		l.set(when+", jobs retired", float64(gone.jobs))
		l.set(when+", jobs retired/s", float64(gone.jobs)/gone.forgetting.Seconds())
		l.set(when+", a day of events dropped ms", ms(gone.events))
		l.set(when+", pipelines pruned/s", float64(gone.pipelines)/gone.pruning.Seconds())
		l.set(when+", retired ÷ finished a second", float64(gone.jobs)/gone.forgetting.Seconds()/load.rate)
		for _, span := range []struct {
			name string
			took []float64
		}{{"before", calm}, {"during retention", busy}} {
			slices.Sort(span.took)
			l.set(when+", due to start p50 ms "+span.name, quantile(span.took, 0.5))
			l.set(when+", due to start p99 ms "+span.name, quantile(span.took, 0.99))
		}
		at := time.Now()
		if _, err := g.pool.Exec(ctx, `vacuum analyze`); err != nil { // stands in for a day's vacuum runs, because a simulated day takes only a minute
			return err
		}
		l.set(when+", vacuum s", time.Since(at).Seconds())
		if err := h.sizes(ctx, l, when); err != nil {
			return err
		}
	}
	return nil
}

// during submits jobs at the load's rate until do returns, and then waits for the jobs to finish.
func (p *soakLoad) during(ctx context.Context, g *rig, do func() error) error {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- p.submit(loading, time.Now(), time.Hour) }()
	err := do()
	stop()
	if load := <-ended; !errors.Is(load, context.Canceled) {
		err = errors.Join(err, load)
	}
	if err != nil {
		return err
	}
	err = g.drained(ctx)
	p.take()
	return err
}

// retired holds the results of retention in one round.
type retired struct {
	jobs, pipelines             int
	forgetting, events, pruning time.Duration
}

// retire deletes the data that has become too old after one more day, as the maintenance tasks do.
func (h *history) retire(ctx context.Context) (r retired, err error) {
	st := inside.Of(h.g.r).Store
	at := time.Now()
	for state, days := range map[string]int{"succeeded": growthDays, "failed": growthDays + growthLater, "cancelled": growthDays + growthLater} {
		n, err := upkeep.Forget(ctx, st, state, h.since(h.next-days), unpaced)
		if err != nil {
			return r, err
		}
		r.jobs += n
	}
	r.forgetting = time.Since(at)
	at = time.Now()
	if _, err := upkeep.ForgetEvents(ctx, st, h.since(h.next-growthEventDays), unpaced); err != nil {
		return r, err
	}
	r.events = time.Since(at)
	at = time.Now()
	r.pipelines, err = upkeep.PrunePipelines(ctx, st, time.Hour, unpaced)
	r.pruning = time.Since(at)
	return r, err
}

// since returns a retention period that has expired for all days before day n.
func (h *history) since(n int) time.Duration { return time.Since(h.day(n)) - time.Minute }

// unpaced lets maintenance continue without pauses.
func unpaced(ctx context.Context) error { return ctx.Err() }
