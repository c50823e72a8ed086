package main

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/runner"
)

// fewSlots measures jobs on a pod that has few slots and whose database is about 1 ms away. It measures both ways of committing completions
// and claims, together and separately, three times each.
func (b *lab) fewSlots(ctx context.Context) (l line, err error) {
	n := b.size(3000)
	l = line{What: "3,000 jobs of 5 ms, one pod with 5 slots, 0.5 ms to the database in each direction; ends and claims in one commit, and in two (NoClaimAhead), three alternating rounds"}
	var rates, transactions, cpu [2][]float64
	for range 3 {
		for i, apart := range []bool{false, true} {
			e, used, err := b.workOffFewSlots(ctx, n, apart)
			if err != nil {
				return l, err
			}
			rates[i], transactions[i] = append(rates[i], float64(n)/e.seconds), append(transactions[i], e.xact/float64(n))
			cpu[i] = append(cpu[i], float64(used.Microseconds())/float64(n))
		}
	}
	for i, how := range []string{"one commit", "two commits"} {
		l.set("jobs/s, "+how, median(rates[i]))
		l.set("writing transactions a job, "+how, median(transactions[i]))
		l.set("µs of the server a job, "+how, median(cpu[i]))
	}
	return l, nil
}

func (b *lab) workOffFewSlots(ctx context.Context, n int, apart bool) (e effort, used time.Duration, err error) {
	url, drop, err := b.fresh(ctx)
	if err != nil {
		return e, 0, err
	}
	g := &rig{url: url, end: []func(){drop}}
	defer g.close()
	via, err := faultnet.Start(url)
	if err != nil {
		return e, 0, err
	}
	g.end = append(g.end, via.Close)
	via.Delay(500 * time.Microsecond)
	if g.pool, g.r, err = (route{}).runner(ctx, via.URL(), runner.Options{Slots: 5, NoClaimAhead: apart}); err != nil {
		return e, 0, err
	}
	g.end = append(g.end, g.pool.Close, g.r.Close)
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) {
		time.Sleep(5 * time.Millisecond) // simulates the job's work
		return nil, nil
	})
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return e, 0, err
	}
	before, _ := b.serverCPU(ctx)
	e, err = g.workOff(ctx, n)
	after, _ := b.serverCPU(ctx)
	return e, after - before, err
}
