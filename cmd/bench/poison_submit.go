package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// poisonCalls submits batches by one call each. A call is refused as a whole, so its caller sends the others again.
type poisonCalls struct {
	g    *rig
	good int
}

// poisonJob is a job that does nothing.
type poisonJob struct {
	Text string `json:"text"`
}

func (poisonJob) Kind() string { return "bench.submitted" }

func (p *poisonCalls) once(ctx context.Context, with string) (time.Duration, error) {
	list := make([]job.Args, poisonBatch)
	for i := range list {
		list[i] = poisonJob{"nothing wrong"}
	}
	at := poisonBatch - 1 // where most has been done before
	var want error
	switch with {
	case "oversized":
		list[at], want = poisonJob{strings.Repeat("x", job.MaxArgsBytes)}, job.ErrTooLarge
	case "invalid text":
		list[at], want = poisonJob{"a\x00b"}, job.ErrInvalidArgs
	}
	began := time.Now()
	ids, err := p.g.r.EnqueueMany(ctx, list)
	if !errors.Is(err, want) || want != nil && len(ids) > 0 {
		return 0, fmt.Errorf("%d jobs are in, and the error is %v, want %v", len(ids), err, want)
	}
	if want != nil {
		if ids, err = p.g.r.EnqueueMany(ctx, slices.Delete(list, at, at+1)); err != nil {
			return 0, err
		}
	}
	p.good += len(ids)
	return time.Since(began), nil
}

func (p *poisonCalls) check(ctx context.Context) error {
	return p.g.counted(ctx, p.good, `select count(*) from trapeze.jobs join trapeze.done d using (id) where kind = 'bench.submitted' and d.state = 'succeeded'`)
}

// poisonKeys submits batches in one transaction each, every job with an idempotency key of its own; the conflict is a key
// that a job with other args has.
type poisonKeys struct {
	g    *rig
	n    int
	good int
}

type poisonKeyed struct {
	N int `json:"n"`
}

func (poisonKeyed) Kind() string { return "bench.keyed" }

func (p *poisonKeys) once(ctx context.Context, with string) (time.Duration, error) {
	const taken = "taken"
	if p.n == 0 {
		if _, err := p.g.r.Enqueue(ctx, poisonKeyed{-1}, runner.IdempotencyKey(taken)); err != nil {
			return 0, err
		}
		p.good++
	}
	began := time.Now()
	err := p.g.r.Tx(ctx, func(tx pgx.Tx) error {
		for i := range poisonBatch {
			p.n++
			key, want := fmt.Sprint("key ", p.n), error(nil)
			if with == "conflict" && i == poisonBatch/2 {
				key, want = taken, job.ErrKeyReused
			}
			_, err := p.g.r.EnqueueTx(ctx, tx, poisonKeyed{p.n}, runner.IdempotencyKey(key))
			if !errors.Is(err, want) {
				return fmt.Errorf("the error is %v, want %v", err, want)
			}
			if err == nil {
				p.good++
			}
		}
		return nil
	})
	return time.Since(began), err
}

func (p *poisonKeys) check(ctx context.Context) error {
	return p.g.counted(ctx, p.good, `select count(*) from trapeze.jobs join trapeze.done d using (id) where kind = 'bench.keyed' and d.state = 'succeeded'`)
}
