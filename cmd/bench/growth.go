package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// Days of history. The pods themselves forget nothing here: the workload does, and measures it.
const (
	growthDays      = 10 // of ended jobs
	growthEventDays = 30
	growthRounds    = 5 // days that are filled anew, and retired, after the first measurements
	growthLater     = 2 // days by which failed and cancelled jobs outlive the others
)

var growthKeeps = runner.Options{Slots: 100, RetainSucceeded: -1, RetainFailed: -1, RetainCancelled: -1, RetainEvents: -1}

// growth fills a database with the history of a long time and compares it with one that is empty; then lets days pass.
func (b *lab) growth(ctx context.Context) (l line, err error) {
	perDay := b.size(10_000_000) / growthDays
	l = line{What: fmt.Sprintf("%d days of %d ended jobs each (a third of them in chains of three, one in 500 failed or cancelled) and %d days of events, against an empty database on the same server, in alternating rounds; then %d days go by, the oldest retired under load",
		growthDays, perDay, growthEventDays, growthRounds),
		Goal: "full ÷ empty ≤ 1.15 for drain, hand-off and submission; rows retired a second ≥ jobs finished a second; sizes level out"}
	empty, err := b.rig(ctx, growthKeeps)
	if err != nil {
		return l, err
	}
	defer empty.close()
	full, err := b.rig(ctx, growthKeeps)
	if err != nil {
		return l, err
	}
	defer full.close()
	h := newHistory(full, perDay, b.say)
	began := time.Now()
	if err := h.fill(ctx); err != nil {
		return l, fmt.Errorf("fill: %w", err)
	}
	l.set("fill s", time.Since(began).Seconds())
	if err := h.sizes(ctx, &l, "filled"); err != nil {
		return l, err
	}
	if err := b.growthCompared(ctx, &l, empty, full); err != nil {
		return l, fmt.Errorf("compare: %w", err)
	}
	if err := b.growthRetired(ctx, &l, h); err != nil {
		return l, fmt.Errorf("retire: %w", err)
	}
	return l, nil
}

// growthTurns is how often each database has its turn.
const growthTurns = 11

// growthCompared measures both databases in turns, and sets the medians of both, and that of how they compare in each turn.
func (b *lab) growthCompared(ctx context.Context, l *line, empty, full *rig) error {
	sides := []*growthSide{}
	for _, g := range []*rig{empty, full} {
		s, err := newGrowthSide(ctx, g)
		if err != nil {
			return err
		}
		defer s.close()
		sides = append(sides, s)
	}
	for round := range growthTurns {
		b.say("growth: turn %d of %d", round+1, growthTurns)
		for i := range sides {
			if err := sides[(round+i)%2].round(ctx, b.size(20_000), b.size(40)); err != nil {
				return err
			}
		}
	}
	for _, name := range sides[0].order {
		e, f := sides[0].seen[name], sides[1].seen[name]
		ratios := make([]float64, len(e))
		for i := range e {
			ratios[i] = f[i] / e[i]
		}
		l.set(name+", empty", median(e))
		l.set(name+", full", median(f))
		l.set(name+", full ÷ empty", median(ratios))
	}
	return nil
}
