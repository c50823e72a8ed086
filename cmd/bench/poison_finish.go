package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// poisonSteps has steps end together, each with a next one. The host has an index of its own on the args of those, so that
// PostgreSQL itself refuses the poisoned: a key that is taken, a value too large for an index, text that is no date.
type poisonSteps struct {
	g       *rig
	round   atomic.Pointer[poisonRound]
	n       int
	good    int
	refused int
}

// poisonRound is one batch: its steps wait at the gate, and the last of the next steps that begins rings.
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

// prepare makes the index, and the job that a conflict is with. It has no next step to ring for.
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

// check counts what all batches came to: every step but the poisoned has succeeded and has one next step, which has too.
func (p *poisonSteps) check(ctx context.Context) error {
	const ended = `select count(*) from trapeze.jobs j join trapeze.done d using (id) where `
	return errors.Join(
		p.g.counted(ctx, p.good, ended+`kind = 'bench.before' and d.state = 'succeeded'`),
		p.g.counted(ctx, p.refused, ended+`kind = 'bench.before' and d.state = 'failed'`),
		p.g.counted(ctx, p.good, ended+`kind = 'bench.after' and d.state = 'succeeded' and j.parent_id is not null`),
		p.g.counted(ctx, p.good, `select count(distinct parent_id) from trapeze.jobs`),
	)
}

// noise is text that does not compress.
func noise(bytes int) string {
	text := make([]byte, bytes)
	for i := range text {
		text[i] = 'a' + byte(rand.IntN(26))
	}
	return string(text)
}
