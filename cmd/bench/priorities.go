package main

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

var fourPriorities = []int{-50, 0, 10, 60}

// priorities measures how fast jobs with different priorities are drained, and how closely their order is followed.
func (b *lab) priorities(ctx context.Context) (l line, err error) {
	calls := b.size(20)
	l = line{What: "40,000 no-op jobs in calls of 500 with one of four priorities in turn, the most urgent last; one pod with 100 slots, and four with 25; pairs with different priorities in which the less urgent job was claimed first, according to the history",
		Goal: "one pod: none out of order"}
	for _, pods := range []int{1, 4} {
		name := "one pod"
		if pods > 1 {
			name = "four pods"
		}
		rate, share, err := b.prioritiesOnce(ctx, pods, calls)
		if err != nil {
			return l, fmt.Errorf("%s: %w", name, err)
		}
		b.printf("priorities: %s: %.0f jobs/s", name, rate)
		l.set(name+": drain jobs/s", rate)
		l.set(name+": share of pairs out of order", share)
	}
	return l, nil
}

func (b *lab) prioritiesOnce(ctx context.Context, pods, calls int) (rate, share float64, err error) {
	f, err := b.rigs(ctx, pods, runner.Options{Slots: 100 / pods}, func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	})
	if err != nil {
		return 0, 0, err
	}
	defer f.close()
	g, n := f[0], 0
	for range calls {
		for _, priority := range fourPriorities {
			jobs := copies(noop{}, 500)
			if _, err := g.r.EnqueueMany(ctx, jobs, runner.Priority(priority)); err != nil {
				return 0, 0, err
			}
			n += len(jobs)
		}
	}
	if err := g.tidy(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	f.start(ctx)
	if err := g.drained(ctx); err != nil {
		return 0, 0, err
	}
	rate = float64(n) / time.Since(began).Seconds()
	if err := g.succeeded(ctx, n); err != nil {
		return 0, 0, err
	}
	share, err = g.outOfOrder(ctx, n)
	return rate, share, err
}

// outOfOrder considers all pairs of jobs with different priorities and returns the share in which the less urgent job was claimed first.
// Jobs claimed by the same statement count as simultaneous. outOfOrder returns an error unless n jobs were claimed.
func (g *rig) outOfOrder(ctx context.Context, n int) (share float64, err error) {
	rows, err := g.pool.Query(ctx, `select e.at, d.priority, count(*) from trapeze.job_event e join trapeze.done d on d.id = e.job
		where e.event = 'job.claimed' group by e.at, d.priority order by e.at, d.priority desc`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	claimed := map[int]int{} // number of jobs claimed so far, by priority
	wrong, all := 0, 0
	for rows.Next() {
		var at time.Time
		var priority, count int
		if err := rows.Scan(&at, &priority, &count); err != nil {
			return 0, err
		}
		// Rows with the same time are sorted by urgency, so simultaneous claims never count as out of order.
		for other, earlier := range claimed {
			if other < priority {
				wrong += earlier * count
			}
			if other != priority {
				all += earlier * count
			}
		}
		claimed[priority] += count
	}
	total := 0
	for _, count := range claimed {
		total += count
	}
	if total != n && rows.Err() == nil {
		return 0, fmt.Errorf("%d claims in the history, want %d", total, n)
	}
	return float64(wrong) / float64(all), rows.Err()
}
