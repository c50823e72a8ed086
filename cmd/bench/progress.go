package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// reportFor is the duration for which the handler reports progress.
const reportFor = 2 * time.Second

// progress measures the database load of a handler that reports progress 10,000 times a second, and then the load of a handler that emits
// events at the same rate.
func (b *lab) progress(ctx context.Context) (l line, err error) {
	l = line{What: "one handler that calls Progress 10,000 times a second for 2 s, and then one that calls Emit as often: number of statements that write them",
		Goal: "≤ 4 writes per second and job; every event is kept"}
	calls := b.size(int(10_000 * reportFor / time.Second))
	over := time.Duration(float64(reportFor) * float64(calls) / 20_000)
	for _, c := range []struct {
		name string
		args reporter
	}{{"Progress", reporter{Notes: calls, For: over}}, {"Emit", reporter{Events: calls, For: over}}} {
		seconds, writes, err := b.runReporter(ctx, c.args)
		if err != nil {
			return l, fmt.Errorf("%s: %w", c.name, err)
		}
		l.set(c.name+": calls/s", float64(calls)/seconds)
		l.set(c.name+": writes", float64(writes))
		l.set(c.name+": writes/s", float64(writes)/seconds)
	}
	return l, nil
}

// runReporter runs one job that emits progress or events evenly over time, as args specifies. It counts the statements that write them.
func (b *lab) runReporter(ctx context.Context, args reporter) (seconds float64, writes int64, err error) {
	url, drop, err := b.fresh(ctx)
	if err != nil {
		return 0, 0, err
	}
	g := &rig{url: url, end: []func(){drop}}
	defer g.close()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, 0, err
	}
	var heard statements
	config.ConnConfig.Tracer = &heard
	if g.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return 0, 0, err
	}
	g.end = append(g.end, g.pool.Close)
	if g.r, err = runner.New(g.pool, runner.Options{TraceQueries: true}); err != nil {
		return 0, 0, err
	}
	g.end = append(g.end, g.r.Close)
	runner.Handle(g.r, func(ctx context.Context, j *runner.Job[reporter]) (*runner.Outcome, error) {
		n, began := max(j.Args.Notes, j.Args.Events), time.Now()
		for i := range n {
			if j.Args.Notes > 0 {
				j.Progress(int64(i+1), int64(n))
			} else if err := j.Emit(ctx, "bench.told", "", "something happened", nil); err != nil {
				return nil, err
			}
			for time.Since(began) < time.Duration(i)*j.Args.For/time.Duration(n) {
				runtime.Gosched()
			}
		}
		return runner.Done(time.Since(began).Seconds()), nil
	})
	g.start(ctx)
	made, err := g.r.Enqueue(ctx, args)
	if err != nil {
		return 0, 0, err
	}
	if seconds, err = runner.Result[float64](ctx, g.r, made.ID); err != nil {
		return 0, 0, err
	}
	j, err := g.r.Job(ctx, made.ID)
	if err != nil {
		return 0, 0, err
	}
	return seconds, heard.notes.Load() + heard.events.Load(), emittedAll(j, args)
}

// emittedAll returns an error unless the database contains everything that a job emitted.
func emittedAll(j job.Job, args reporter) error {
	if args.Notes > 0 && (j.Progress == nil || *j.Progress.Done != int64(args.Notes)) {
		return errors.New("the last progress note is missing")
	}
	// In addition, there are two or three events about the job: one or two for its creation and claim, and one for its completion.
	if told := j.EventNo; told < args.Events+2 || told > args.Events+3 {
		return fmt.Errorf("%d events, want %d plus the events of the job itself", told, args.Events)
	}
	return nil
}
