package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// order resembles the arguments of a web shop's job. It has IDs, numbers, and text that compresses like real text.
type order struct {
	ID       string      `json:"id"`
	Customer string      `json:"customer"`
	Placed   string      `json:"placed_at"`
	Note     string      `json:"note"`
	Lines    []orderLine `json:"lines"`
}

type orderLine struct {
	Article  string `json:"article"`
	Title    string `json:"title"`
	Quantity int    `json:"quantity"`
	Cents    int    `json:"unit_price_cents"`
}

func (order) Kind() string { return "bench.order" }

var words = []string{"copper", "kettle", "window", "left", "blue", "travel", "adapter", "for", "steel", "garden", "lamp", "with",
	"small", "paper", "box", "of", "twelve", "cable", "and", "wooden", "handle", "spare", "winter", "cover"}

func phrase(rnd *rand.Rand, n int) (text string) {
	for range n {
		text += words[rnd.IntN(len(words))] + " "
	}
	return text[:len(text)-1]
}

// newOrder returns an order whose JSON has about the given size, and the exact size in bytes.
func newOrder(rnd *rand.Rand, bytes int) (o order, size int, err error) {
	o = order{ID: fmt.Sprintf("%016x", rnd.Uint64()), Customer: fmt.Sprintf("c-%08d", rnd.IntN(1e8)), Note: phrase(rnd, 12),
		Placed: fmt.Sprintf("2026-%02d-%02dT%02d:%02d:%02dZ", 1+rnd.IntN(12), 1+rnd.IntN(28), rnd.IntN(24), rnd.IntN(60), rnd.IntN(60))}
	head, err := json.Marshal(o)
	if err != nil {
		return o, 0, err
	}
	for size = len(head); size < bytes; {
		p := orderLine{fmt.Sprintf("a-%010x", rnd.Uint64N(1<<40)), phrase(rnd, 4), 1 + rnd.IntN(9), rnd.IntN(20_000)}
		o.Lines = append(o.Lines, p)
		encoded, err := json.Marshal(p)
		if err != nil {
			return o, 0, err
		}
		size += len(encoded) + 1
	}
	encoded, err := json.Marshal(o)
	return o, len(encoded), err
}

// args measures how fast jobs with larger arguments are enqueued and drained.
func (b *lab) args(ctx context.Context) (l line, err error) {
	l = line{What: "args of 1.5 kB (50,000 jobs) and 20 kB (5,000 jobs): enqueue in calls of 2,000, then start one pod with 100 slots, whose handlers decode the args",
		Goal: "drain writes no args: ≤ 700 B WAL per job, regardless of their size"}
	for _, c := range []struct {
		name  string
		bytes int
		jobs  int
	}{{"1.5 kB: ", 1500, b.size(50_000)}, {"20 kB: ", 20_000, b.size(5000)}} {
		b.printf("args: %s%d jobs", c.name, c.jobs)
		if err := b.argsOnce(ctx, &l, c.name, c.bytes, c.jobs); err != nil {
			return l, err
		}
	}
	return l, nil
}

func (b *lab) argsOnce(ctx context.Context, l *line, name string, bytes, n int) error {
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return err
	}
	defer g.close()
	var read atomic.Int64
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[order]) (*runner.Outcome, error) {
		read.Add(int64(len(j.Args.Lines)))
		return nil, nil
	})
	rnd := rand.New(rand.NewPCG(1, uint64(bytes)))
	some := make([]order, 500)
	sizes := make([]int, len(some))
	for i := range some {
		if some[i], sizes[i], err = newOrder(rnd, bytes); err != nil {
			return err
		}
	}
	list, sent, size := make([]job.Args, n), 0, 0
	for i := range list {
		one := some[i%len(some)]
		list[i] = one
		sent += len(one.Lines)
		size += sizes[i%len(some)]
	}
	in, err := g.measure(ctx, func() error { _, err := g.r.EnqueueMany(ctx, list); return err })
	if err != nil {
		return err
	}
	out, err := g.workOff(ctx, n)
	if err != nil {
		return err
	}
	if read.Load() != int64(sent) {
		return fmt.Errorf("handlers read %d lines of orders, want %d", read.Load(), sent)
	}
	l.set(name+"bytes of args, mean", float64(size)/float64(n))
	l.set(name+"bulk enqueue jobs/s", float64(n)/in.seconds)
	l.set(name+"enqueue, WAL bytes a job", in.wal/float64(n))
	l.set(name+"drain jobs/s", float64(n)/out.seconds)
	l.set(name+"drain, WAL bytes a job", out.wal/float64(n))
	return nil
}
