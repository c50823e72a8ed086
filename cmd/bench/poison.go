package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// poisonBatch is the number of jobs that are submitted together or finish together.
const poisonBatch = 500

// poisoned describes one phase of a job's life and the ways to poison a batch in that phase. The first way leaves the batch clean. once
// runs one batch and returns how long the jobs that are not poisoned took.
type poisoned struct {
	side  string
	with  []string
	once  func(ctx context.Context, with string) (time.Duration, error)
	after func(ctx context.Context) error // checks the results of all batches
}

// poison measures how much a poisoned job, which PostgreSQL or Trapeze rejects, delays the other jobs in its batch. It also checks that the
// poisoned job has no other effect on these jobs.
func (b *lab) poison(ctx context.Context) (l line, err error) {
	rounds := b.size(20)
	l = line{What: fmt.Sprintf("%d jobs submitted together (calls of EnqueueMany; one transaction with keys), and %d steps that finish together and start their next steps (one pod with %[1]d slots, a unique index of the host on the args), one of which is rejected; time until the others are stored, after a resubmission if necessary, or until their next steps run; medians of %[3]d rounds",
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

// counted returns an error unless a query returns the expected count.
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

// poisonCalls submits each batch with one call. The whole call is rejected, so the caller resubmits the other jobs.
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
	at := poisonBatch - 1 // late in the batch, after most of the work has been done
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

// poisonKeys submits each batch in one transaction, with a separate idempotency key for each job. The poisoned job reuses the key of a job
// with different arguments.
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

// poisonSteps finishes steps together, each with a next step. A unique index and a check constraint that the host has added cover the
// arguments of the next steps. PostgreSQL therefore rejects the poisoned step because of a duplicate key, a value that is too large for an
// index, or an invalid date.
type poisonSteps struct {
	g       *rig
	round   atomic.Pointer[poisonRound]
	n       int
	good    int
	refused int
}

// poisonRound is one batch. Its steps wait until gate is closed. The last of the next steps to start sends its start time on rung.
type poisonRound struct {
	gate chan struct{}
	left atomic.Int64
	rung chan time.Time
}

type poisonBefore struct {
	Once json.RawMessage `json:"once"`
}

func (poisonBefore) Kind() string { return "bench.before" }

type poisonAfter struct {
	Once json.RawMessage `json:"once"`
}

func (poisonAfter) Kind() string { return "bench.after" }

func newPoisonSteps(g *rig) *poisonSteps {
	p := &poisonSteps{g: g}
	nothing := func(context.Context) (*runner.Outcome, error) { return nil, nil }
	runner.Handle(g.r, func(ctx context.Context, _ *runner.Job[poisonJob]) (*runner.Outcome, error) { return nothing(ctx) })
	runner.Handle(g.r, func(ctx context.Context, _ *runner.Job[poisonKeyed]) (*runner.Outcome, error) { return nothing(ctx) })
	runner.Handle(g.r, func(ctx context.Context, j *runner.Job[poisonBefore]) (*runner.Outcome, error) {
		select {
		case <-p.round.Load().gate:
			return runner.Then(poisonAfter(j.Args)), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	runner.Handle(g.r, func(context.Context, *runner.Job[poisonAfter]) (*runner.Outcome, error) {
		if one := p.round.Load(); one != nil && one.left.Add(-1) == 0 {
			one.rung <- time.Now()
		}
		return nil, nil
	})
	return p
}

// prepare creates the index, the constraint, and the job that holds the conflicting key. That job has no next step.
func (p *poisonSteps) prepare(ctx context.Context) error {
	for _, sql := range []string{
		`create unique index on trapeze.jobs ((args ->> 'once')) where kind = 'bench.after'`,
		`alter table trapeze.jobs add check (kind <> 'bench.after' or args ->> 'once' not like '2025-__-__' or (args ->> 'once')::date is not null)`,
	} {
		if _, err := p.g.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := p.g.r.Enqueue(ctx, poisonAfter{json.RawMessage(`"taken"`)}); err != nil {
		return err
	}
	return p.g.drained(ctx)
}

func (p *poisonSteps) once(ctx context.Context, with string) (time.Duration, error) {
	list := make([]job.Args, poisonBatch)
	for i := range list {
		p.n++
		list[i] = poisonBefore{json.RawMessage(fmt.Sprint(p.n))}
	}
	good, at := poisonBatch-1, rand.IntN(poisonBatch)
	switch with {
	case "conflict":
		list[at] = poisonBefore{json.RawMessage(`"taken"`)}
	case "oversized":
		list[at] = poisonBefore{json.RawMessage(`"` + noise(100_000) + `"`)}
	case "no date":
		list[at] = poisonBefore{json.RawMessage(`"2025-02-30"`)}
	default:
		good++
	}
	one := &poisonRound{gate: make(chan struct{}), rung: make(chan time.Time, 1)}
	one.left.Store(int64(good))
	p.round.Store(one)
	ids, err := p.g.r.EnqueueMany(ctx, list)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the batch did not end within a minute"))
	defer cancel()
	for p.g.r.Running() < poisonBatch {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	began := time.Now()
	close(one.gate)
	select {
	case last := <-one.rung:
		p.good, p.refused = p.good+good, p.refused+poisonBatch-good
		if err := p.g.drained(ctx); err != nil || good == poisonBatch {
			return last.Sub(began), err
		}
		return last.Sub(began), p.g.counted(ctx, 1,
			`select count(*) from trapeze.done where id = $1 and state = 'failed' and reason = 'unstorable' and error <> ''`, ids[at])
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// check checks the results of all batches. Every step except the poisoned ones must have succeeded and must have exactly one next step,
// which must also have succeeded.
func (p *poisonSteps) check(ctx context.Context) error {
	const ended = `select count(*) from trapeze.jobs j join trapeze.done d using (id) where `
	return errors.Join(
		p.g.counted(ctx, p.good, ended+`kind = 'bench.before' and d.state = 'succeeded'`),
		p.g.counted(ctx, p.refused, ended+`kind = 'bench.before' and d.state = 'failed'`),
		p.g.counted(ctx, p.good, ended+`kind = 'bench.after' and d.state = 'succeeded' and j.parent_id is not null`),
		p.g.counted(ctx, p.good, `select count(distinct parent_id) from trapeze.jobs`),
	)
}

// noise returns incompressible text.
func noise(bytes int) string {
	text := make([]byte, bytes)
	for i := range text {
		text[i] = 'a' + byte(rand.IntN(26))
	}
	return string(text)
}
