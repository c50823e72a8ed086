package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

// schedules measures how fast one pod processes schedules that are all due at the same time. For each schedule, the pod records the
// occurrence, submits the job, and plans the next occurrence.
func (b *lab) schedules(ctx context.Context) (l line, err error) {
	n := b.size(10_000)
	l = line{What: fmt.Sprintf("%d schedules that are due at the same time, missed occurrences skipped; one pod; the rate from the first decision to the last", n),
		Goal: "≥ 1,000 occurrences/s, none of them missed"}
	g, err := b.rig(ctx, runner.Options{})
	if err != nil {
		return l, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	g.start(ctx)
	if _, err := g.pool.Exec(ctx, `
		insert into trapeze.schedules (name, expression, kind, missed, planned, next_at, anchor)
		select 's' || n, '@every 8760h', 'bench.noop', 'skip', true, t.at, t.at - interval '8760 hours'
		from (select clock_timestamp() + interval '1 second' as at) t, generate_series(1, $1::int) n`, n); err != nil {
		return l, err
	}
	var untilLast, span float64
	for left := 1; left > 0; {
		select {
		case <-ctx.Done():
			return l, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		if err := g.pool.QueryRow(ctx, `select count(*) from trapeze.schedules where next_at <= clock_timestamp() + interval '1 hour'`).Scan(&left); err != nil {
			return l, err
		}
	}
	var fired int
	if err := g.pool.QueryRow(ctx, `
		select count(*) filter (where outcome = 'fired'), max(extract(epoch from decided_at - fire_at))::float8,
			extract(epoch from max(decided_at) - min(decided_at))::float8 from trapeze.schedule_fires`).Scan(&fired, &untilLast, &span); err != nil {
		return l, err
	}
	if fired != n {
		return l, fmt.Errorf("%d of %d schedules have fired", fired, n)
	}
	l.set("fires/s", float64(n)/span)
	l.set("seconds until the last", untilLast)
	return l, g.drained(ctx)
}
