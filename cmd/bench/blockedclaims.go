package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// blockedClaims measures claims and submissions while the queue contains jobs that the pod cannot claim. It varies the number of these jobs
// and the reason why they cannot be claimed.
func (b *lab) blockedClaims(ctx context.Context) (l line, err error) {
	l = line{What: "up to 100 claims for ten slots, each from the start of the lane, and 200 single submissions to a pod with ten slots, while n jobs wait that it cannot claim: of one busy subject, of a kind that no pod handles, or in a full lane",
		Goal: "claim p50 ≤ 2 ms with 200,000 such jobs"}
	for _, shape := range []string{"subject", "kind", "lane"} {
		for _, n := range []int{0, 1_000, 20_000, 200_000} {
			claims, starts, err := b.besideBlocked(ctx, shape, b.size(n))
			if err != nil {
				return l, err
			}
			name := fmt.Sprintf("%s, %d", shape, n)
			l.set(name+": claim ms p50", quantile(claims, 0.5))
			l.set(name+": claim ms max", quantile(claims, 1))
			l.set(name+": start ms p50", quantile(starts, 0.5))
			l.set(name+": start ms p99", quantile(starts, 0.99))
			b.printf("blocked-claims: %s: claim %.2f ms, start %.2f ms", name, quantile(claims, 0.5), quantile(starts, 0.5))
		}
	}
	return l, nil
}

func (b *lab) besideBlocked(ctx context.Context, shape string, n int) (claims, starts []float64, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 10})
	if err != nil {
		return nil, nil, err
	}
	defer g.close()
	hold := make(chan struct{})
	defer close(hold)
	began := make(chan time.Time, 1)
	runner.Handle(g.r, func(context.Context, *runner.Job[about]) (*runner.Outcome, error) { <-hold; return nil, nil })
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) {
		began <- time.Now()
		return nil, nil
	})
	if _, err := g.pool.Exec(ctx, `insert into trapeze.lanes (name, slots_per_pod) values ('full', 1)`); err != nil {
		return nil, nil, err
	}
	g.start(ctx)
	kind, subject, lane := about{}.Kind(), "", job.DefaultLane
	options := []runner.EnqueueOption{runner.Priority(100)}
	switch shape {
	case "subject":
		subject = "busy"
		options = append(options, runner.Subject(subject))
	case "lane":
		lane = "full"
		options = append(options, runner.Lane(lane))
	case "kind":
		kind = "bench.other"
	}
	if shape != "kind" {
		if _, err := g.r.Enqueue(ctx, about{}, options...); err != nil {
			return nil, nil, err
		}
		for running := 0; running == 0; time.Sleep(time.Millisecond) {
			if err := g.pool.QueryRow(ctx, `select count(*) from trapeze.live where state = 'running'`).Scan(&running); err != nil {
				return nil, nil, err
			}
		}
	}
	if _, err := g.pool.Exec(ctx, `with made as (
			insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id)
			select -g, $2, $4, $3, '{}', -g from generate_series(1, $1::int) g returning id
		)
		insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
		select id, now(), 1, 10, 'pending', $4, $2, $3 from made`, n, kind, subject, lane); err != nil {
		return nil, nil, err
	}
	if err := g.tidy(ctx); err != nil {
		return nil, nil, err
	}
	for range 200 {
		at := time.Now()
		if _, err := g.r.Enqueue(ctx, noop{}); err != nil {
			return nil, nil, err
		}
		select {
		case now := <-began:
			starts = append(starts, ms(now.Sub(at)))
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	slices.Sort(starts)
	st, err := store.New(ctx, g.pool, store.Options{Connections: 1})
	if err != nil {
		return nil, nil, err
	}
	defer st.Close()
	boot := uuid.NewString()
	const lease = 15 * time.Second // with a much longer lease, the other pod would consider this lease expired
	kinds := []string{noop{}.Kind(), about{}.Kind()}
	if err := st.Register(ctx, store.PodInfo{Boot: boot, Name: "bench", Kinds: kinds, Slots: 10}, lease); err != nil {
		return nil, nil, err
	}
	for opened := time.Now(); len(claims) < 100 && time.Since(opened) < lease/2; {
		found, err := st.Claim(ctx, boot, []store.Want{{Lane: job.DefaultLane, N: 10}}, kinds, false)
		if err != nil {
			return nil, nil, err
		}
		claims = append(claims, ms(found.Took))
	}
	slices.Sort(claims)
	return claims, starts, nil
}

// blockedHead measures the cost of skipping jobs that may not run yet.
func (b *lab) blockedHead(ctx context.Context) (l line, err error) {
	n := b.size(10_000)
	l = line{What: "10,000 free no-op jobs in a lane behind 10,000 of one subject, which run one at a time, one pod with 100 slots; compared with the free jobs alone",
		Goal: "free jobs ≥ 0.5 × their rate alone"}
	alone, _, err := b.pastHead(ctx, n, 0)
	if err != nil {
		return l, err
	}
	b.printf("blocked-head: alone %.2f s", alone)
	behind, ended, err := b.pastHead(ctx, n, n)
	if err != nil {
		return l, err
	}
	l.set("free jobs/s, alone", float64(n)/alone)
	l.set("free jobs/s, behind the head", float64(n)/behind)
	l.set("behind ÷ alone", alone/behind)
	l.set("jobs/s of the head meanwhile", float64(ended)/behind)
	return l, nil
}

// pastHead returns how long it takes to run n free jobs behind a blocked head, and how many jobs at the head finish in that time.
func (b *lab) pastHead(ctx context.Context, n, head int) (seconds float64, ended int, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return 0, 0, err
	}
	defer g.close()
	var ran atomic.Int64
	all := make(chan struct{})
	runner.Handle(g.r, func(context.Context, *runner.Job[about]) (*runner.Outcome, error) { return nil, nil })
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) {
		if ran.Add(1) == int64(n) {
			close(all)
		}
		return nil, nil
	})
	if _, err := g.r.EnqueueMany(ctx, copies(about{}, head), runner.Subject("hot")); err != nil {
		return 0, 0, err
	}
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return 0, 0, err
	}
	if err := g.tidy(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	g.start(ctx)
	select {
	case <-all:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	for open := true; open; {
		if err := g.pool.QueryRow(ctx, `select exists (select from trapeze.live where kind = $1)`, noop{}.Kind()).Scan(&open); err != nil {
			return 0, 0, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	seconds = time.Since(began).Seconds()
	var free int
	err = g.pool.QueryRow(ctx, `select count(*) filter (where j.kind = $1), count(*) filter (where j.kind = $2)
		from trapeze.done d join trapeze.jobs j using (id) where d.state = 'succeeded'`, noop{}.Kind(), about{}.Kind()).Scan(&free, &ended)
	if err == nil && free != n {
		err = fmt.Errorf("%d of %d free jobs have succeeded", free, n)
	}
	return seconds, ended, err
}
