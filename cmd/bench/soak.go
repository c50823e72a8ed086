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

	"github.com/trapeze-run/trapeze/runner"
)

// These are fractions of the soak's duration. In a soak of 10 minutes, for example, the snapshot is held from minute 3 to minute 6, and the
// drift compares the last two minutes with minutes 1 to 3.
const (
	soakHeldFrom, soakHeldTo   = 0.3, 0.6
	soakEarlyFrom, soakEarlyTo = 0.1, 0.3
	soakLateFrom               = 0.8
)

// soakRetention keeps finished jobs and their history for a second. A shorter period would make no difference, because retention drops
// whole UTC days: yesterday's jobs are dropped, and today's jobs are kept until midnight regardless of the setting.
var soakRetention = runner.Options{RetainSucceeded: time.Second, RetainFailed: time.Second, RetainCancelled: time.Second, RetainEvents: time.Second}

// soak first measures the pod's capacity. It then submits jobs at half that rate, samples the tables, and plots the result.
func (b *lab) soak(ctx context.Context) (l line, err error) {
	length := max(time.Duration(b.scale*float64(10*time.Minute)), 10*time.Second)
	every := max(length/300, 200*time.Millisecond)
	out := "docs"
	if b.scale < 1 {
		out = os.TempDir() // a trial run does not overwrite the stored result
	}
	samplesFile, chartFile := filepath.Join(out, "soak.jsonl"), filepath.Join(out, "soak.svg")
	l = line{What: fmt.Sprintf("%s at half of capacity, jobs submitted one by one; a snapshot held open from %s to %s; retention on (1 s; it drops whole days, so the jobs of the capacity run are dated back to yesterday and deleted, and today's are kept); samples and chart in %s and %s",
		length, soakShare(length, soakHeldFrom), soakShare(length, soakHeldTo), samplesFile, chartFile),
		Goal: "no drift after the snapshot is released: ratios of p99 and throughput about 1"}
	g, err := b.rig(ctx, soakRetention)
	if err != nil {
		return l, err
	}
	defer g.close()
	samples, err := os.Create(samplesFile)
	if err != nil {
		return l, err
	}
	defer samples.Close()

	say := func(format string, args ...any) {
		if !b.quiet {
			fmt.Fprintf(os.Stderr, "soak: "+format+"\n", args...)
		}
	}
	say("measuring capacity")
	capacity, err := g.soakCapacity(ctx, max(length/60, 3*time.Second))
	if err != nil {
		return l, fmt.Errorf("capacity: %w", err)
	}
	l.set("capacity jobs/s", capacity)

	load := newSoakLoad(capacity / 2)
	load.handle(g.r)
	g.start(ctx)
	watch := &soakWatch{g: g, load: load, length: length, every: every, out: samples, tables: soakTables, say: say,
		title: "Soak: throughput, latency, sizes and dead tuples over time; a snapshot is held open in the shaded span"}
	if err := g.soakRun(ctx, length, load, watch); err != nil {
		return l, err
	}
	if err := g.soakChecked(ctx, load); err != nil {
		return l, err
	}
	if err := os.WriteFile(chartFile, soakChart(watch), 0o644); err != nil {
		return l, err
	}
	soakFigures(&l, watch)
	return l, nil
}

func soakShare(d time.Duration, part float64) time.Duration {
	return time.Duration(part * float64(d)).Round(100 * time.Millisecond)
}

// soakRun submits jobs, takes samples and holds the snapshot for the given time. Then it waits until all submitted jobs have finished.
func (g *rig) soakRun(ctx context.Context, length time.Duration, load *soakLoad, watch *soakWatch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 3)
	began := time.Now()
	for _, part := range []func() error{
		func() error { return load.submit(ctx, began, length) },
		func() error { return watch.run(ctx, began) },
		func() error {
			if watch.held.Load() { // the caller already holds a snapshot
				return nil
			}
			return g.soakSnapshot(ctx, watch, began, length)
		},
	} {
		go func() { ended <- part() }()
	}
	var errs []error
	for range cap(ended) {
		if err := <-ended; err != nil {
			cancel()
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return g.drained(ctx)
}

// soakSnapshot holds a snapshot of the whole database during the middle of the soak. Rows that die during that time cannot be vacuumed.
func (g *rig) soakSnapshot(ctx context.Context, watch *soakWatch, began time.Time, length time.Duration) error {
	if err := soakUntil(ctx, began.Add(soakShare(length, soakHeldFrom))); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, g.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	var before, after string
	if err := tx.QueryRow(ctx, `select pg_current_snapshot()::text`).Scan(&before); err != nil {
		return err
	}
	watch.held.Store(true)
	if err := soakUntil(ctx, began.Add(soakShare(length, soakHeldTo))); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, `select pg_current_snapshot()::text`).Scan(&after); err != nil {
		return fmt.Errorf("hold a snapshot: %w", err)
	}
	watch.held.Store(false)
	if before != after {
		return fmt.Errorf("the snapshot was not held: %s, then %s", before, after)
	}
	return tx.Rollback(ctx)
}

func soakUntil(ctx context.Context, at time.Time) error {
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// soakChecked compares the database with the submitted jobs, and checks that retention has dropped yesterday's jobs.
func (g *rig) soakChecked(ctx context.Context, load *soakLoad) error {
	sent := int(load.sent.Load())
	if ended := int(load.begun.Load()); ended != sent {
		return fmt.Errorf("%d jobs submitted, %d started", sent, ended)
	}
	if err := g.counted(ctx, sent, `select count(*) from trapeze.jobs j join trapeze.done d using (id) where j.kind = $1 and d.state = 'succeeded'`, soakJob{}.Kind()); err != nil {
		return err
	}
	if err := g.counted(ctx, 0, `select count(*) from trapeze.jobs where kind = $1`, saturating{}.Kind()); err != nil {
		return fmt.Errorf("retention: %w", err)
	}
	return g.counted(ctx, 0, `select count(*) from trapeze.done where finished_at < $1::timestamptz`, load.today)
}

// soakFigures adds the soak's figures to the result.
func soakFigures(l *line, w *soakWatch) {
	var early, held, late soakSpan
	for _, s := range w.samples {
		at := s.At / w.length.Seconds()
		switch {
		case at > soakEarlyFrom && at <= soakEarlyTo:
			early.add(s)
		case s.Held:
			held.add(s)
		case at > soakLateFrom:
			late.add(s)
		}
	}
	for _, span := range []struct {
		name string
		of   *soakSpan
	}{{"before", &early}, {"under the snapshot", &held}, {"at the end", &late}} {
		l.set("jobs/s "+span.name, span.of.rate())
		l.set("due to start p99 ms "+span.name, span.of.p99())
		l.set("dead tuples at most "+span.name, float64(span.of.dead))
		l.set("live MB at most "+span.name, float64(span.of.live)/1e6)
	}
	l.set("drift of jobs/s", late.rate()/early.rate())
	l.set("drift of p99", late.p99()/early.p99())
}

// soakSpan summarizes part of the samples.
type soakSpan struct {
	jobs      int
	seconds   float64
	latencies []float64
	dead      int64 // the maximum over all samples of the total for all tables
	live      int64 // the maximum size of the live table with its indexes, in bytes
}

func (p *soakSpan) add(s soakSample) {
	p.jobs += s.Jobs
	p.seconds += s.Seconds
	p.latencies = append(p.latencies, s.latencies...)
	var dead int64
	for _, t := range s.Tables {
		dead += t.Dead
	}
	p.dead = max(p.dead, dead)
	p.live = max(p.live, s.Tables["live"].Heap+s.Tables["live"].Index)
}

func (p *soakSpan) rate() float64 { return float64(p.jobs) / p.seconds }

func (p *soakSpan) p99() float64 {
	slices.Sort(p.latencies)
	return quantile(p.latencies, 0.99)
}
