package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// elsewhere measures how long a job waits for its handler to start if another process submits it.
func (b *lab) elsewhere(ctx context.Context) (l line, err error) {
	l = line{What: "another process submits no-op jobs one by one (open loop), and a pod with default options runs them: from the time each was due until its handler starts; idle: intervals of 60 ms plus an exponential part with a mean of 60 ms",
		Goal: "idle with notifications ≤ River's from another process"}
	idle := func(n int) arrivals {
		return arrivals{N: b.size(n), Seed: 1, Least: 60 * time.Millisecond, Mean: 60 * time.Millisecond}
	}
	steady := arrivals{N: b.size(2000), Seed: 2, Mean: 10 * time.Millisecond}
	polled := arrivals{N: b.size(600), Seed: 3, Mean: 50 * time.Millisecond} // lasts for three poll intervals, so that jobs arrive at any point within an interval
	bouncer, err := b.startPgbouncer(ctx)
	if errors.Is(err, errNoPgbouncer) {
		l.What += "; pgbouncer: " + notInstalled
	} else if err != nil {
		return l, err
	} else {
		defer bouncer.stop()
	}
	const short = 100 * time.Millisecond
	for _, c := range []struct {
		name  string
		route route
		poll  time.Duration
		load  arrivals
	}{
		{"NOTIFY, idle", route{}, 0, idle(200)},
		{"NOTIFY, 100 jobs/s", route{}, 0, steady},
		{"poll 100 ms alone", route{noNotify: true}, short, idle(200)},
		{"poll 10 s alone, 20 jobs/s", route{noNotify: true}, 0, polled},
		{"pgbouncer, NOTIFY, idle", route{via: bouncer}, 0, idle(200)},
		{"pgbouncer, poll 100 ms alone", route{via: bouncer, noNotify: true}, short, idle(200)},
	} {
		if bouncer == nil && strings.HasPrefix(c.name, "pgbouncer") {
			continue
		}
		b.printf("elsewhere: %s, %d jobs", c.name, c.load.N)
		list, late, err := b.elsewhereOnce(ctx, c.route, c.poll, c.load)
		if err != nil {
			return l, fmt.Errorf("%s: %w", c.name, err)
		}
		report(&l, c.name+" ms", list)
		l.set(c.name+" submitted late ms p99", quantile(late, 0.99))
	}
	return l, nil
}

// elsewhereOnce runs a pod that connects to the database over the given route and polls at the given interval, where 0 means the default.
// Another process submits jobs over the same route. elsewhereOnce returns how long each job waited and how late each submission was.
func (b *lab) elsewhereOnce(ctx context.Context, w route, poll time.Duration, load arrivals) (list, late []float64, err error) {
	g, err := b.rigOn(ctx, w, runner.Options{PollEvery: poll})
	if err != nil {
		return nil, nil, err
	}
	defer g.close()
	var seen waits
	runner.Handle(g.r, seen.handle)
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	g.start(ctx)
	if err := g.listens(ctx, w); err != nil {
		return nil, nil, err
	}
	address, err := w.pool(g.url)
	if err != nil {
		return nil, nil, err
	}
	if late, err = submitElsewhere(ctx, task{Pool: address, Direct: w.direct(g.url), Load: load}); err != nil {
		return nil, nil, err
	}
	if err := g.drained(ctx); err != nil {
		return nil, nil, err
	}
	if list, err = seen.take(load.N); err != nil {
		return nil, nil, err
	}
	return list, late, g.succeeded(ctx, load.N+1) // plus the job that opened the connections
}

// listens waits until the pod listens for notifications, unless they are disabled.
func (g *rig) listens(ctx context.Context, w route) error {
	if w.noNotify {
		return nil
	}
	return until(ctx, 10*time.Second, "the pod listens", func() (listening bool, err error) {
		err = g.pool.QueryRow(ctx, `select exists (select from pg_stat_activity where datname = current_database() and query ilike 'listen %')`).Scan(&listening)
		return listening, err
	})
}
