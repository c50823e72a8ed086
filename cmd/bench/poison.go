package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// poisonBatch is how many jobs are submitted, or end, together.
const poisonBatch = 500

// poisoned is one side of a job's life, and with what a batch of it is poisoned: first with nothing. once runs one batch
// and tells for how long the others were kept.
type poisoned struct {
	side  string
	with  []string
	once  func(ctx context.Context, with string) (time.Duration, error)
	after func(ctx context.Context) error // checks what became of all batches
}

// poison measures what one poisoned member costs the others of its batch, and that it costs them nothing else.
func (b *lab) poison(ctx context.Context) (l line, err error) {
	rounds := b.size(20)
	l = line{What: fmt.Sprintf("%d jobs submitted together (calls of EnqueueMany; one transaction with keys), and %d steps that end together and hand over (one pod with %[1]d slots, args with a unique index of the host's), with one among them that is refused; time until the others are in, sent again where they must, or their next steps run; medians of %[3]d",
		poisonBatch, poisonBatch, rounds),
		Goal: "every ratio to the clean batch < 2"}
	g, err := b.rig(ctx, runner.Options{Slots: poisonBatch})
	if err != nil {
		return l, err
	}
	defer g.close()
	steps := newPoisonSteps(g)
	g.start(ctx)
	if err := steps.prepare(ctx); err != nil {
		return l, err
	}
	calls, keys := &poisonCalls{g: g}, &poisonKeys{g: g}
	sides := []poisoned{
		{"submit", []string{"clean", "oversized", "invalid text"}, calls.once, calls.check},
		{"submit with keys", []string{"clean", "conflict"}, keys.once, keys.check},
		{"finish", []string{"clean", "conflict", "oversized", "no date"}, steps.once, steps.check},
	}
	took := map[string][]float64{}
	for round := range rounds {
		for _, s := range sides {
			for _, with := range s.with {
				one, err := s.once(ctx, with)
				if err == nil {
					err = g.drained(ctx)
				}
				if err != nil {
					return l, fmt.Errorf("%s, %s: %w", s.side, with, err)
				}
				took[s.side+", "+with] = append(took[s.side+", "+with], ms(one))
			}
		}
		if !b.quiet {
			fmt.Fprintf(os.Stderr, "poison: round %d of %d\n", round+1, rounds)
		}
	}
	for _, s := range sides {
		if err := s.after(ctx); err != nil {
			return l, fmt.Errorf("%s: %w", s.side, err)
		}
		var clean float64
		for _, with := range s.with {
			values := took[s.side+", "+with]
			slices.Sort(values)
			median := quantile(values, 0.5)
			l.set(s.side+", "+with+" ms", median)
			if with == "clean" {
				clean = median
				continue
			}
			l.set(s.side+", "+with+" ratio", median/clean)
		}
	}
	return l, nil
}

// counted fails unless a query counts what was done.
func (g *rig) counted(ctx context.Context, want int, sql string, args ...any) error {
	var n int
	if err := g.pool.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("%d instead of %d: %s", n, want, sql)
	}
	return nil
}
