package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// These constants describe the load of an ordinary day: submissions and a pod's heartbeats. A third of the submissions have a second step.
const (
	heldJobsASecond  = 10.0
	heldBeatsASecond = 0.5
	heldThird        = 3
)

// heldTables lists the tables whose sizes are measured. The user's table, which is named written, is not one of them.
var heldTables = []string{"jobs", "live", "done", "job_events", "pods"}

// heldJob is a job that writes a row when it succeeds.
type heldJob struct {
	N   int64 `json:"n"`
	Due int64 `json:"due"` // Unix nanoseconds; 0 for a second step
}

func (heldJob) Kind() string { return "bench.held" }

// heldDay compresses a day's jobs and heartbeats into minutes, at half the pod's capacity. A snapshot is held throughout. A scale of 0.1
// means 2.4 hours of the same load.
func (b *lab) heldDay(ctx context.Context) (l line, err error) {
	hours := 24 * b.scale
	n := int(heldJobsASecond * 3600 * hours)
	out := "docs"
	if b.scale < 1 {
		out = os.TempDir() // a trial run does not overwrite the stored result
	}
	samplesFile, chartFile := filepath.Join(out, "held-day.jsonl"), filepath.Join(out, "held-day.svg")
	capacity, err := b.heldCapacity(ctx, max(b.length(10*time.Second), 2*time.Second))
	if err != nil {
		return l, fmt.Errorf("capacity: %w", err)
	}
	length := time.Duration(float64(n) / (capacity / 2) * float64(time.Second))
	faster := hours * 3600 / length.Seconds()
	l = line{What: fmt.Sprintf("%.3g hours of %g submissions a second (a third with a second step; each step writes a row with Write) and of the heartbeats of a pod, %.0f times as fast: %s; submitted one by one as if by another program, so that a claim starts each first step; a snapshot held open from the beginning to the end; autovacuum_naptime 1 s; samples and chart in %s and %s",
		hours, heldJobsASecond, faster, length.Round(time.Second), samplesFile, chartFile),
		Goal: "p50 of the last 24th (an hour) ≤ 1.5 × that of the first; each row once"}
	l.set("capacity, submissions/s", capacity)

	g, done, err := b.heldRig(ctx)
	if err != nil {
		return l, err
	}
	defer done()
	samples, err := os.Create(samplesFile)
	if err != nil {
		return l, err
	}
	defer samples.Close()
	prober, err := newHeldProber(ctx, g)
	if err != nil {
		return l, err
	}
	load := newSoakLoad(capacity / 2)
	load.job = func(ctx context.Context, i int, due time.Time) error {
		_, err := g.r.Enqueue(ctx, heldJob{int64(i), due.UnixNano()}, runner.Foreign())
		return err
	}
	g.handleHeld(load)
	g.start(ctx)
	watch := &soakWatch{g: g, load: load, length: length, every: max(length/288, 200*time.Millisecond), out: samples, tables: heldTables,
		poll: prober.poll, hours: hours, title: "A day under a held snapshot: throughput, latency, sizes and dead tuples over simulated hours",
		say: func(format string, args ...any) { b.printf("held-day: "+format, args...) }}
	watch.held.Store(true)
	release, err := g.holdSnapshot(ctx)
	if err != nil {
		return l, err
	}
	defer release()
	beating, stop := context.WithCancel(ctx)
	beats := make(chan error, 1)
	go func() { beats <- prober.beat(beating, heldBeatsASecond*faster) }()
	err = g.soakRun(ctx, length, load, watch)
	stop()
	if err = errors.Join(err, <-beats); err != nil {
		return l, err
	}
	if err := g.heldChecked(ctx, int(load.sent.Load())); err != nil {
		return l, err
	}
	heldFigures(&l, watch)
	if err := g.heldReleased(ctx, &l, release); err != nil {
		return l, err
	}
	return l, os.WriteFile(chartFile, soakChart(watch), 0o644)
}

// heldRig creates a database with the user's table. On its server, autovacuum runs more often than usual, because a day is compressed into
// minutes.
func (b *lab) heldRig(ctx context.Context) (g *rig, done func(), err error) {
	if g, err = b.rig(ctx, runner.Options{}); err != nil {
		return nil, nil, err
	}
	for _, sql := range []string{`create table written (n bigint not null, step int not null)`, `alter system set autovacuum_naptime = '1s'`, `select pg_reload_conf()`} {
		if _, err := g.pool.Exec(ctx, sql); err != nil {
			g.close()
			return nil, nil, err
		}
	}
	return g, func() {
		for _, sql := range []string{`alter system reset autovacuum_naptime`, `select pg_reload_conf()`} {
			_, _ = g.pool.Exec(context.WithoutCancel(ctx), sql)
		}
		g.close()
	}, nil
}

// handleHeld registers the handler. Each job writes its row, and every third job has a second step.
func (g *rig) handleHeld(load *soakLoad) {
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[heldJob]) (*runner.Outcome, error) {
		const write = `insert into written (n, step) values ($1, $2)`
		if j.Args.Due == 0 {
			return runner.Done(nil).Write(write, j.Args.N, 2), nil
		}
		load.note(j.Args.Due)
		after := runner.Done(nil)
		if j.Args.N%heldThird == 0 {
			after = runner.Then(heldJob{N: j.Args.N})
		}
		return after.Write(write, j.Args.N, 1), nil
	})
}

// heldCapacity returns how many submissions per second a pod can handle if submissions are not throttled. It uses a separate database.
func (b *lab) heldCapacity(ctx context.Context, length time.Duration) (float64, error) {
	g, done, err := b.heldRig(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	load := newSoakLoad(0)
	g.handleHeld(load)
	g.start(ctx)
	began := time.Now()
	err = bySubmitters(ctx, func(ctx context.Context, first int) error {
		for i := first; time.Since(began) < length; i += soakSubmitters {
			if _, err := g.r.Enqueue(ctx, heldJob{int64(i), time.Now().UnixNano()}, runner.Foreign()); err != nil {
				return err
			}
			load.sent.Add(1)
		}
		return nil
	})
	if err == nil {
		err = g.drained(ctx)
	}
	return float64(load.sent.Load()) / time.Since(began).Seconds(), err
}

// heldChecked returns an error unless each job has succeeded and has written its row exactly once.
func (g *rig) heldChecked(ctx context.Context, sent int) error {
	all := sent + (sent+heldThird-1)/heldThird
	if err := g.succeeded(ctx, all); err != nil {
		return err
	}
	if err := g.counted(ctx, all, `select count(*) from written`); err != nil {
		return err
	}
	return g.counted(ctx, all, `select count(distinct (n, step)) from written`)
}

// heldFigures reports the latencies in the first and the last 24th of the run, and the sizes and dead rows at the end. At scale 1, a 24th
// represents an hour.
func heldFigures(l *line, w *soakWatch) {
	hour := w.length.Seconds() / 24
	var p50 [2]float64
	for i, when := range []string{"in the first 24th", "in the last 24th"} {
		var starts, polls []float64
		for _, s := range w.samples {
			if i == 0 && s.At <= hour || i == 1 && s.At > w.length.Seconds()-hour {
				starts, polls = append(starts, s.latencies...), append(polls, s.Poll)
			}
		}
		slices.Sort(starts)
		p50[i] = quantile(starts, 0.5)
		l.set("due to start p50 ms "+when, p50[i])
		l.set("due to start p99 ms "+when, quantile(starts, 0.99))
		l.set("claim that finds nothing, median ms "+when, median(polls))
	}
	l.set("p50, last 24th ÷ first", p50[1]/p50[0])
	last := w.samples[len(w.samples)-1]
	for _, table := range heldTables {
		t := last.Tables[table]
		l.set(table+" MB at the end", float64(t.Heap)/1e6)
		l.set(table+" indexes MB at the end", float64(t.Index)/1e6)
		l.set(table+" dead rows at the end", float64(t.Dead))
	}
}

// heldReleased releases the snapshot, vacuums, and reports how many dead rows remain.
func (g *rig) heldReleased(ctx context.Context, l *line, release func()) error {
	release()
	at := time.Now()
	if err := g.tidy(ctx); err != nil {
		return err
	}
	l.set("vacuum once the snapshot is gone s", time.Since(at).Seconds())
	conn, err := pgx.Connect(ctx, g.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	sizes, err := soakSizes(ctx, conn, heldTables)
	for _, table := range heldTables {
		l.set(table+" dead rows after it", float64(sizes[table].Dead))
	}
	return err
}

// heldProber is a pod without handlers that only sends heartbeats and polls.
type heldProber struct {
	st   *store.Store
	boot string
}

func newHeldProber(ctx context.Context, g *rig) (*heldProber, error) {
	p := &heldProber{st: inside.Of(g.r).Store}
	if err := g.pool.QueryRow(ctx, `select gen_random_uuid()::text`).Scan(&p.boot); err != nil {
		return nil, err
	}
	return p, p.st.Register(ctx, store.PodInfo{Boot: p.boot, Name: "prober", Kinds: []string{"none"}, Slots: 1}, time.Hour)
}

// poll returns the duration of a claim that finds no job, in milliseconds.
func (p *heldProber) poll(ctx context.Context) (float64, error) {
	at := time.Now()
	_, err := p.st.Claim(ctx, p.boot, []store.Want{{Lane: "default", N: 100}}, []string{"none"}, true)
	return ms(time.Since(at)), err
}

// beat sends heartbeats until ctx is cancelled. rate is the number of heartbeats per second.
func (p *heldProber) beat(ctx context.Context, rate float64) error {
	began := time.Now()
	for i := 1; ; i++ {
		if soakUntil(ctx, began.Add(time.Duration(float64(i)/rate*float64(time.Second)))) != nil {
			return nil
		}
		if _, err := p.st.Heartbeat(ctx, p.boot, time.Hour, false); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
