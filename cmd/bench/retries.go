package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// flaky is a job that may fail on its first attempt.
type flaky struct {
	Fails bool `json:"fails"`
}

func (flaky) Kind() string { return "bench.flaky" }

var errFlaky = errors.New("connection to the mail server was refused")

// retries measures how fast a backlog is drained if some of its jobs fail once.
func (b *lab) retries(ctx context.Context) (l line, err error) {
	n := b.size(20_000)
	l = line{What: "20,000 no-op jobs, every tenth of which fails once and is due again after 1 ms, until the last job has finished, one pod with 100 slots; compared with the same jobs without failures",
		Goal: "≥ 0.5 × the rate without failures"}
	well, err := b.flakyDrain(ctx, n, 0)
	if err != nil {
		return l, err
	}
	b.printf("retries: without failures %.2f s", well.seconds)
	failing := (n + 9) / 10
	e, err := b.flakyDrain(ctx, n, failing)
	if err != nil {
		return l, err
	}
	l.set("jobs/s, none fails", float64(n)/well.seconds)
	l.set("jobs/s, every tenth fails", float64(n)/e.seconds)
	l.set("failing ÷ none", well.seconds/e.seconds)
	l.set("attempts a job", float64(n+failing)/float64(n))
	l.set("writing transactions a job", e.xact/float64(n))
	l.set("WAL bytes a job", e.wal/float64(n))
	return l, nil
}

// flakyDrain drains n jobs, of which the given number, spread evenly, fail on their first attempt.
func (b *lab) flakyDrain(ctx context.Context, n, failing int) (e effort, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return e, err
	}
	defer g.close()
	var tries atomic.Int64
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[flaky]) (*runner.Outcome, error) {
		tries.Add(1)
		if j.Args.Fails && j.Attempt() == 1 {
			return nil, errFlaky
		}
		return nil, nil
	}, runner.Retry(2, runner.Backoff{Base: time.Millisecond, Jitter: -1}))
	list := make([]job.Args, n)
	for i := range list {
		list[i] = flaky{failing > 0 && i%10 == 0}
	}
	if _, err := g.r.EnqueueMany(ctx, list); err != nil {
		return e, err
	}
	if e, err = g.workOff(ctx, n); err != nil {
		return e, err
	}
	var attempts, retried int
	err = g.pool.QueryRow(ctx, `select (select sum(attempt) from trapeze.done),
		(select count(*) from trapeze.job_event where event = 'job.retried')`).Scan(&attempts, &retried)
	if err == nil && (attempts != n+failing || retried != failing || tries.Load() != int64(n+failing)) {
		err = fmt.Errorf("%d tries, %d attempts and %d retries in the database, want %d and %d", tries.Load(), attempts, retried, n+failing, failing)
	}
	return e, err
}
