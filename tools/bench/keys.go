package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// tenth is a job of a tenant that takes 10 ms.
type tenth struct{}

func (tenth) Kind() string { return "bench.tenth" }

// keys measures the drain of a backlog with different numbers of keys, and how long small tenants wait behind the backlog of a large one.
func (b *lab) keys(ctx context.Context) (l line, err error) {
	n := b.size(100_000)
	l = line{What: fmt.Sprintf("one pod with 100 slots drains %d no-op jobs without keys, with 1, 100 and as many keys as jobs; then 99 tenants submit 10 jobs of 10 ms each, alone and behind %d jobs of one tenant, on 16 slots", n, n),
		Goal: "rates ÷ rate without keys: 0.9, 0.9, 0.8; tenants wait at most 2 × what they wait alone"}
	var plain float64
	for _, keys := range []int{0, 1, 100, n} {
		rate, err := b.drainOfKeys(ctx, n, keys)
		if err != nil {
			return l, err
		}
		if keys == 0 {
			plain = rate
			l.set("without keys, jobs/s", rate)
			continue
		}
		l.set(fmt.Sprintf("%d keys, ÷ rate without keys", keys), rate/plain)
	}
	alone, err := b.tenants(ctx, 0)
	if err != nil {
		return l, err
	}
	behind, err := b.tenants(ctx, n)
	if err != nil {
		return l, err
	}
	l.set("tenants alone, mean wait ms", alone)
	l.set("tenants behind a large one, ÷ alone", behind/alone)
	return l, nil
}

func (b *lab) drainOfKeys(ctx context.Context, n, keys int) (rate float64, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return 0, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	b.printf("keys: enqueues %d jobs with %d keys", n, keys)
	for i := range max(1, keys) {
		if keys > 100 {
			break
		}
		var options []runner.EnqueueOption
		if keys > 0 {
			options = append(options, runner.Key(fmt.Sprint("key-", i)))
		}
		if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n/max(1, keys)), options...); err != nil {
			return 0, err
		}
	}
	if keys > 100 {
		list := make([]int, keys)
		for i := range list {
			list[i] = i
		}
		for part := range slices.Chunk(list, 500) {
			err := g.r.Tx(ctx, func(tx pgx.Tx) error {
				for _, i := range part {
					if _, err := g.r.EnqueueTx(ctx, tx, noop{}, runner.Key(fmt.Sprint("key-", i))); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return 0, err
			}
		}
	}
	e, err := g.workOff(ctx, n)
	if err != nil {
		return 0, err
	}
	return float64(n) / e.seconds, nil
}

// tenants returns how long the jobs of 99 tenants wait on average if another one has submitted many jobs before.
func (b *lab) tenants(ctx context.Context, many int) (mean float64, err error) {
	g, err := b.rig(ctx, runner.Options{Slots: 16})
	if err != nil {
		return 0, err
	}
	defer g.close()
	var mu sync.Mutex
	var waits []float64
	all := make(chan struct{})
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[tenth]) (*runner.Outcome, error) {
		if j.Key() != "large" {
			mu.Lock()
			if waits = append(waits, ms(time.Since(j.CreatedAt()))); len(waits) == 990 {
				close(all)
			}
			mu.Unlock()
		}
		time.Sleep(10 * time.Millisecond)
		return nil, nil
	})
	if many > 0 {
		if _, err := g.r.EnqueueMany(ctx, copies(tenth{}, many), runner.Key("large")); err != nil {
			return 0, err
		}
	}
	g.start(ctx)
	if many > 0 {
		time.Sleep(time.Second) // the large tenant has filled its window
	}
	for i := range 99 {
		if _, err := g.r.EnqueueMany(ctx, copies(tenth{}, 10), runner.Key(fmt.Sprint("tenant-", i))); err != nil {
			return 0, err
		}
	}
	select {
	case <-all:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	mu.Lock()
	defer mu.Unlock()
	var sum float64
	for _, w := range waits {
		sum += w
	}
	return sum / float64(len(waits)), nil
}
