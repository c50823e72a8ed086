package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// blockedClaims measures claims and submissions while jobs wait that the pod cannot claim, by their number and by what blocks them.
func (b *lab) blockedClaims(ctx context.Context) (l line, err error) {
	l = line{What: "up to 100 claims for ten slots, each from the lane's start, and 200 single submissions to a pod with ten slots, beside n jobs that it cannot claim: of one busy subject, of a kind that no pod runs, in a full lane",
		Goal: "claim p50 ≤ 2 ms beside 200,000"}
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
			b.say("blocked-claims: %s: claim %.2f ms, start %.2f ms", name, quantile(claims, 0.5), quantile(starts, 0.5))
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
	const lease = 15 * time.Second // a much longer one is taken for lapsed by the other pod
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
