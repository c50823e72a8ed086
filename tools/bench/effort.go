package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// effort is the measured cost of some work.
type effort struct {
	seconds float64
	xact    float64 // number of transactions that wrote
	wal     float64 // bytes
}

// measure runs do and returns its cost.
func (g *rig) measure(ctx context.Context, do func() error) (e effort, err error) {
	before, err := g.meter(ctx)
	if err != nil {
		return e, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return e, err
	}
	e.seconds = time.Since(began).Seconds()
	after, err := g.meter(ctx)
	if err != nil {
		return e, err
	}
	e.xact, e.wal = after.xact-before.xact, after.wal-before.wal
	return e, nil
}

// workOff starts the pod with a backlog of n jobs, waits until all have succeeded, and returns the cost.
func (g *rig) workOff(ctx context.Context, n int) (e effort, err error) {
	if err := g.tidy(ctx); err != nil {
		return e, err
	}
	e, err = g.measure(ctx, func() error {
		g.start(ctx)
		return g.drained(ctx)
	})
	if err != nil {
		return e, err
	}
	return e, g.succeeded(ctx, n)
}

// succeeded returns an error unless the database contains exactly n jobs, all of which have succeeded.
func (g *rig) succeeded(ctx context.Context, n int) error {
	var submitted, succeeded int
	err := g.pool.QueryRow(ctx, `select (select count(*) from trapeze.jobs),
		(select count(distinct id) from trapeze.done where state = 'succeeded')`).Scan(&submitted, &succeeded)
	if err == nil && (submitted != n || succeeded != n) {
		err = fmt.Errorf("%d of %d jobs have succeeded, want %d", succeeded, submitted, n)
	}
	return err
}

// copies returns n copies of a job.
func copies(of job.Args, n int) []job.Args {
	list := make([]job.Args, n)
	for i := range list {
		list[i] = of
	}
	return list
}

// printf prints the progress of a long workload to stderr.
func (b *lab) printf(format string, args ...any) {
	if !b.quiet {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}
