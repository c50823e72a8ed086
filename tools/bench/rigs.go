package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// rigs is a set of pods in this process that share a fresh database, each with its own pool. The first pod's rig creates and drops the
// database.
type rigs []*rig

// rigs creates n pods without starting them. It calls handle for each pod to register the handlers.
func (b *lab) rigs(ctx context.Context, n int, o runner.Options, handle func(*runner.Runner)) (f rigs, err error) {
	for i := range n {
		var g *rig
		if i == 0 {
			g, err = b.rig(ctx, o)
		} else {
			g, err = f[0].peer(ctx, o)
		}
		if err != nil {
			f.close()
			return nil, err
		}
		f = append(f, g)
		handle(g.r)
	}
	return f, nil
}

// peer returns another runner on the same database.
func (g *rig) peer(ctx context.Context, o runner.Options) (*rig, error) {
	p := &rig{url: g.url}
	var err error
	if p.pool, err = pgxpool.New(ctx, g.url); err != nil {
		return nil, err
	}
	p.end = append(p.end, p.pool.Close)
	if p.r, err = runner.New(p.pool, o); err != nil {
		p.close()
		return nil, err
	}
	p.end = append(p.end, p.r.Close)
	return p, nil
}

// start runs all pods until close is called.
func (f rigs) start(ctx context.Context) {
	var ready sync.WaitGroup
	for _, g := range f {
		ready.Go(func() { g.start(ctx) })
	}
	ready.Wait()
}

func (f rigs) close() {
	for _, g := range slices.Backward(f) {
		g.close()
	}
}

// crowd counts concurrent runs. It is safe for concurrent use.
type crowd struct {
	now, most, all atomic.Int64
	first          sync.Once
	at             time.Time // when the first run started
}

func (c *crowd) enter() {
	c.first.Do(func() { c.at = time.Now() })
	c.all.Add(1)
	n := c.now.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
}

func (c *crowd) leave() { c.now.Add(-1) }

// began returns when the first run started, or the zero time if none has started.
func (c *crowd) began() time.Time {
	c.first.Do(func() {}) // synchronizes with the write of c.at
	return c.at
}
