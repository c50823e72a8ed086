package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// tenants measures jobs that are spread over a few of many limited lanes, as if each tenant had a lane.
func (b *lab) tenants(ctx context.Context) (l line, err error) {
	const pods = 5
	lanes, jobs, rounds := b.size(2000), 200, 5
	l = line{What: fmt.Sprintf("%d lanes with a limit of 2 slots, %d pods in one process; another runner submits %d no-op jobs in one transaction, each in a lane chosen at random: from the commit until the last job has ended, %d rounds", lanes, pods, jobs, rounds),
		Goal: "maximum ≤ 2 s"}
	f, err := b.rigs(ctx, pods, runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	})
	if err != nil {
		return l, err
	}
	defer f.close()
	g := f[0]
	if _, err := g.pool.Exec(ctx, `insert into trapeze.lanes (name, slots) select 'tenant-' || n, 2 from generate_series(1, $1) n`, lanes); err != nil {
		return l, err
	}
	other, err := g.peer(ctx, runner.Options{})
	if err != nil {
		return l, err
	}
	defer other.close()
	f.start(ctx)
	pause(ctx, b.length(10*time.Second))
	random := rand.New(rand.NewPCG(1, 2))
	var seconds []float64
	for round := range rounds {
		took, err := other.submitToTenants(ctx, random, lanes, jobs)
		if err != nil {
			return l, err
		}
		b.printf("tenants round %d: %.2f s", round+1, took.Seconds())
		seconds = append(seconds, took.Seconds())
		pause(ctx, b.length(6*time.Second)) // gives the pods time to return their unused slots
	}
	server, known := b.serverCPU(ctx)
	began := time.Now()
	pause(ctx, b.length(20*time.Second))
	if after, _ := b.serverCPU(ctx); known {
		l.set("idle server ms/s per pod", ms(after-server)/time.Since(began).Seconds()/pods)
	}
	slices.Sort(seconds)
	l.set("seconds median", quantile(seconds, 0.5))
	l.set("seconds maximum", seconds[len(seconds)-1])
	return l, g.succeeded(ctx, rounds*jobs)
}

// submitToTenants submits jobs to lanes chosen at random and returns how long they took to end after the commit.
func (g *rig) submitToTenants(ctx context.Context, random *rand.Rand, lanes, jobs int) (took time.Duration, err error) {
	var committed time.Time
	err = g.r.Tx(ctx, func(tx pgx.Tx) error {
		for range jobs {
			if _, err := g.r.EnqueueTx(ctx, tx, noop{}, runner.Foreign(), runner.Lane(fmt.Sprintf("tenant-%d", 1+random.IntN(lanes)))); err != nil {
				return err
			}
		}
		committed = time.Now()
		return nil
	})
	if err == nil {
		err = g.drained(ctx)
	}
	return time.Since(committed), err
}
