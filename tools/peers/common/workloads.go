package common

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// bench is one run of a workload with one peer.
type bench struct {
	ctx      context.Context
	p        Peer
	url      string
	workload string
	n        int // number of jobs or chains
	workers  int
	r        map[string]any // the measured values
}

// drain runs W1 and W5, in which workers process a backlog, either completely or for a limited time.
func (b *bench) drain() {
	var count atomic.Int64
	counter := func(context.Context, Payload, func(Payload) error) error { count.Add(1); return nil }
	must(b.p.Open(b.ctx, b.url))
	if pre := Env("PRELOAD_SQL", 0); pre == 0 {
		bulkAll(b.ctx, b.p, b.n, Env("BATCH", 2000))
	}
	b.p.Close()
	Exec(b.url, "vacuum analyze")
	Exec(b.url, "checkpoint")
	time.Sleep(300 * time.Millisecond)
	a := Snap(b.url)
	t0 := time.Now()
	stop, err := b.p.Start(b.ctx, b.url, b.workers, counter)
	must(err)
	if b.workload == "W1" {
		for int(count.Load()) < b.n {
			time.Sleep(time.Millisecond)
		}
		waitPending(b.url, b.p.PendingSQL())
		secs := time.Since(t0).Seconds()
		stop()
		time.Sleep(100 * time.Millisecond)
		finish(b.r, a, Snap(b.url), b.n, secs)
	} else {
		time.Sleep(time.Second)
		a, c0, t1 := Snap(b.url), count.Load(), time.Now()
		time.Sleep(time.Duration(Env("WINDOW", 6)) * time.Second)
		c1, d := count.Load(), time.Since(t1)
		if c1 >= int64(b.n) {
			fmt.Fprintln(os.Stderr, "W5: backlog exhausted")
		}
		finish(b.r, a, Snap(b.url), int(c1-c0), d.Seconds())
		out(b.r)
		os.Exit(0)
	}
}

// submit runs W2 and W2T, which measure how fast jobs are submitted.
func (b *bench) submit() {
	must(b.p.Open(b.ctx, b.url))
	a := Snap(b.url)
	t0 := time.Now()
	bulkAll(b.ctx, b.p, b.n, Env("BATCH", 2000))
	secs := time.Since(t0).Seconds()
	b.p.Close()
	time.Sleep(100 * time.Millisecond)
	finish(b.r, a, Snap(b.url), b.n, secs)
}

// pickUp runs W3, which measures how long a job submitted to an idle fleet takes to start.
func (b *bench) pickUp() {
	ch := make(chan int64, 10)
	stop, err := b.p.Start(b.ctx, b.url, b.workers, func(ctx context.Context, pl Payload, next func(Payload) error) error {
		ch <- time.Now().UnixNano() - pl.T
		return nil
	})
	must(err)
	time.Sleep(1500 * time.Millisecond)
	var ds []time.Duration
	for i := -20; i < b.n; i++ {
		must(b.p.Enqueue(b.ctx, Payload{Chain: i, Step: -1, T: time.Now().UnixNano()}))
		d := <-ch
		if i >= 0 {
			ds = append(ds, time.Duration(d))
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	b.r["latency_ms"] = Pcts(ds)
}

// chainSteps is the number of steps in a chain.
const chainSteps = 5

// startChains starts the workers with a handler that enqueues the next step. times holds the start times of each chain's steps and is
// guarded by mu. done receives each chain that finishes.
func (b *bench) startChains() (times map[int][]time.Time, mu *sync.Mutex, done chan int, stop func()) {
	if WritesRows() {
		Exec(b.url, "create table bench_rows (chain int not null, step int not null)")
	}
	times, mu, done = map[int][]time.Time{}, &sync.Mutex{}, make(chan int, b.n+100)
	stop, err := b.p.Start(b.ctx, b.url, b.workers, func(ctx context.Context, pl Payload, next func(Payload) error) error {
		now := time.Now()
		mu.Lock()
		times[pl.Chain] = append(times[pl.Chain], now)
		mu.Unlock()
		if pl.Step < chainSteps-1 {
			return next(Payload{Chain: pl.Chain, Step: pl.Step + 1, T: pl.T})
		}
		done <- pl.Chain
		return nil
	})
	must(err)
	time.Sleep(1500 * time.Millisecond)
	return times, mu, done, stop
}

// gaps returns the intervals between consecutive steps of a chain.
func gaps(began []time.Time) (list []time.Duration) {
	for i := 1; i < len(began); i++ {
		list = append(list, began[i].Sub(began[i-1]))
	}
	return list
}

// chainLatency runs W4L, which runs one chain at a time on an idle fleet.
func (b *bench) chainLatency() {
	times, mu, done, stop := b.startChains()
	var between, whole []time.Duration
	for i := -5; i < b.n; i++ {
		t0 := time.Now()
		must(b.p.Enqueue(b.ctx, Payload{Chain: i, T: t0.UnixNano()}))
		<-done
		mu.Lock()
		began := times[i]
		mu.Unlock()
		if i >= 0 {
			between = append(between, gaps(began)...)
			whole = append(whole, began[len(began)-1].Sub(t0))
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	b.r["gap_ms"], b.r["chain_ms"] = Pcts(between), Pcts(whole)
}

// chains runs W4C and W4T, which run n chains concurrently. In W4T, each step writes a row.
func (b *bench) chains() {
	times, _, done, stop := b.startChains()
	ps := make([]Payload, b.n)
	for i := range ps {
		ps[i] = Payload{Chain: i}
	}
	a := Snap(b.url)
	t0 := time.Now()
	must(b.p.Bulk(b.ctx, ps))
	for range b.n {
		<-done
	}
	waitPending(b.url, b.p.PendingSQL())
	secs := time.Since(t0).Seconds()
	stop()
	time.Sleep(100 * time.Millisecond)
	finish(b.r, a, Snap(b.url), b.n*chainSteps, secs)
	b.r["chains_per_s"] = float64(b.n) / secs
	if WritesRows() {
		must(rowsWritten(b.url, b.n*chainSteps))
	}
	var between []time.Duration
	for _, began := range times {
		between = append(between, gaps(began)...)
	}
	b.r["gap_ms"] = Pcts(between)
}

// processes runs W6, which uses four processes with five workers each.
func (b *bench) processes() {
	must(b.p.Open(b.ctx, b.url))
	bulkAll(b.ctx, b.p, b.n, 2000)
	b.p.Close()
	Exec(b.url, "analyze")
	var cmds []*exec.Cmd
	var ins []interface{ Close() error }
	var gos []func()
	for i := 0; i < 4; i++ {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "ROLE=worker", "WORKERS=5", "GOMAXPROCS=2")
		c.Stderr = os.Stderr
		in, _ := c.StdinPipe()
		o, _ := c.StdoutPipe()
		must(c.Start())
		bufio.NewReader(o).ReadString('\n')
		cmds, ins = append(cmds, c), append(ins, in)
		gos = append(gos, func() { in.Write([]byte("go\n")) })
	}
	a := Snap(b.url)
	t0 := time.Now()
	for _, g := range gos {
		g()
	}
	waitPending(b.url, b.p.PendingSQL())
	secs := time.Since(t0).Seconds()
	for i := range cmds {
		ins[i].Close()
		cmds[i].Wait()
	}
	time.Sleep(100 * time.Millisecond)
	finish(b.r, a, Snap(b.url), b.n, secs)
}
