package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// reporter is a job that emits progress and events.
type reporter struct {
	Events int           `json:"events"`
	Notes  int           `json:"notes"`
	For    time.Duration `json:"for"`
}

func (reporter) Kind() string { return "bench.reporter" }

// events measures the cost of emitting an event from a handler.
func (b *lab) events(ctx context.Context) (l line, err error) {
	n := b.size(20_000)
	l = line{What: "20,000 jobs that emit no event, one event or ten and do nothing else, one pod with 100 slots, until the last job has finished",
		Goal: "ten events cost as little as two, because all but the first share a statement"}
	seconds := map[int]float64{}
	for _, events := range []int{0, 1, 10} {
		e, err := b.reporterDrain(ctx, n, events)
		if err != nil {
			return l, err
		}
		seconds[events] = e.seconds
		b.printf("events: %d a job, %.2f s", events, e.seconds)
		name := fmt.Sprintf("%d a job: ", events)
		l.set(name+"jobs/s", float64(n)/e.seconds)
		l.set(name+"writing transactions a job", e.xact/float64(n))
		l.set(name+"WAL bytes a job", e.wal/float64(n))
	}
	l.set("µs an event, one a job", 1e6*(seconds[1]-seconds[0])/float64(n))
	l.set("µs an event, ten a job", 1e6*(seconds[10]-seconds[0])/float64(10*n))
	return l, nil
}

// reporterDrain drains n jobs that each emit the given number of events, and checks that all events were stored.
func (b *lab) reporterDrain(ctx context.Context, n, events int) (e effort, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return e, err
	}
	defer g.close()
	runner.Handle(g.r, func(ctx context.Context, j *runner.Job[reporter]) (*runner.Outcome, error) {
		for i := range j.Args.Events {
			if err := j.Emit(ctx, "bench.told", "", "something happened", map[string]int{"i": i}); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	if _, err := g.r.EnqueueMany(ctx, copies(reporter{Events: events}, n)); err != nil {
		return e, err
	}
	if e, err = g.workOff(ctx, n); err != nil {
		return e, err
	}
	var told int
	err = g.pool.QueryRow(ctx, `select count(*) from trapeze.job_events where event = 'bench.told'`).Scan(&told)
	if err == nil && told != n*events {
		err = fmt.Errorf("%d events in the history, want %d", told, n*events)
	}
	return e, err
}

// statements counts the statements that write progress and events.
type statements struct{ notes, events atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	switch {
	case strings.Contains(data.SQL, "insert into trapeze.job_progress"):
		s.notes.Add(1)
	case strings.Contains(data.SQL, "'handler', e.level"):
		s.events.Add(1)
	}
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
