package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// hotSubject measures whether the jobs of one subject become slower, the more of them there have been, above all while an
// open snapshot keeps dead rows from being removed.
func (b *lab) hotSubject(ctx context.Context) (l line, err error) {
	n, rounds := b.size(500), 3
	l = line{What: "1,500 jobs of one subject in rounds of 500, one pod with 100 slots: seconds of each round, without and with a snapshot that another connection holds open from the beginning",
		Goal: "last round ≤ 1.5 × the first, also under the snapshot"}
	for _, held := range []bool{false, true} {
		name := "free"
		if held {
			name = "snapshot held"
		}
		seconds, err := b.hotRounds(ctx, n, rounds, held)
		if err != nil {
			return l, fmt.Errorf("%s: %w", name, err)
		}
		for i, s := range seconds {
			l.set(fmt.Sprintf("%s: round %d s", name, i+1), s)
		}
		l.set(name+": last ÷ first", seconds[rounds-1]/seconds[0])
		l.set(name+": jobs/s of the last", float64(n)/seconds[rounds-1])
	}
	return l, nil
}

func (b *lab) hotRounds(ctx context.Context, n, rounds int, held bool) (seconds []float64, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return nil, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[about]) (*runner.Outcome, error) { return nil, nil })
	if held {
		release, err := g.holdSnapshot(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	g.start(ctx)
	const warmUp = 10 // jobs, so that the first round does not pay for connections and plans
	for round := range 1 + rounds {
		list := copies(about{}, n)
		if round == 0 {
			list = list[:min(warmUp, n)]
		}
		began := time.Now()
		if _, err := g.r.EnqueueMany(ctx, list, runner.Subject("hot")); err != nil {
			return nil, err
		}
		if err := g.drained(ctx); err != nil {
			return nil, err
		}
		if round == 0 {
			continue
		}
		seconds = append(seconds, time.Since(began).Seconds())
		b.say("hot-subject: snapshot held %t, round %d: %.2f s", held, round, seconds[round-1])
	}
	return seconds, g.succeeded(ctx, min(warmUp, n)+n*rounds)
}

// holdSnapshot opens a transaction that sees the database as it is now until it is released.
func (g *rig) holdSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, g.url)
	if err != nil {
		return nil, err
	}
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, `begin isolation level repeatable read; select from trapeze.live limit 1`); err != nil {
		release()
		return nil, err
	}
	return release, nil
}
