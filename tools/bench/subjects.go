package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// about is a job that has one of several subjects.
type about struct {
	Subject int `json:"subject"`
}

func (about) Kind() string { return "bench.about" }

const manySubjects = 1000

// subjects measures how fast a backlog is drained if jobs with the same subject cannot overlap.
func (b *lab) subjects(ctx context.Context) (l line, err error) {
	n := b.size(20_000)
	l = line{What: "20,000 no-op jobs, each with one of 1,000 subjects (Zipf, s = 1.1), one pod with 100 slots; checks that jobs of one subject never overlap",
		Goal: "no overlap; the rate is bounded by the hottest subject, whose jobs run one after the other"}
	g, err := b.rig(ctx, runner.Options{Slots: 100})
	if err != nil {
		return l, err
	}
	defer g.close()
	var running, ran [manySubjects]atomic.Int64
	var overlaps atomic.Int64
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[about]) (*runner.Outcome, error) {
		s := j.Args.Subject
		if running[s].Add(1) > 1 {
			overlaps.Add(1)
		}
		ran[s].Add(1)
		runtime.Gosched() // makes overlaps detectable; otherwise the handler returns too quickly
		running[s].Add(-1)
		return nil, nil
	})
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, manySubjects-1)
	list, of := make([]int, n), [manySubjects]int64{}
	for i := range list {
		list[i] = int(zipf.Uint64())
		of[list[i]]++
	}
	b.printf("subjects: enqueues %d jobs", n)
	if err := g.enqueueAbout(ctx, list); err != nil {
		return l, err
	}
	e, err := g.workOff(ctx, n)
	if err != nil {
		return l, err
	}
	if overlaps.Load() > 0 {
		return l, fmt.Errorf("%d jobs ran while another job of their subject was running", overlaps.Load())
	}
	distinct, hottest := 0, int64(0)
	for s := range of {
		if ran[s].Load() != of[s] {
			return l, fmt.Errorf("subject %d ran %d times, want %d", s, ran[s].Load(), of[s])
		}
		if of[s] > 0 {
			distinct++
		}
		hottest = max(hottest, of[s])
	}
	l.set("subjects in use", float64(distinct))
	l.set("share of the hottest subject", float64(hottest)/float64(n))
	l.set("drain jobs/s", float64(n)/e.seconds)
	l.set("hottest subject's jobs/s", float64(hottest)/e.seconds)
	l.set("writing transactions a job", e.xact/float64(n))
	l.set("WAL bytes a job", e.wal/float64(n))
	return l, nil
}

// enqueueAbout submits one job for each subject in a list. It submits 500 jobs per transaction and runs three transactions in parallel.
func (g *rig) enqueueAbout(ctx context.Context, list []int) error {
	parts := make(chan []int, len(list)/500+1)
	for part := range slices.Chunk(list, 500) {
		parts <- part
	}
	close(parts)
	var wg sync.WaitGroup
	var errs [3]error
	for i := range errs {
		wg.Go(func() {
			for part := range parts {
				if errs[i] = g.r.Tx(ctx, func(tx pgx.Tx) error { return g.aboutIn(ctx, tx, part) }); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

func (g *rig) aboutIn(ctx context.Context, tx pgx.Tx, subjects []int) error {
	for _, s := range subjects {
		if _, err := g.r.EnqueueTx(ctx, tx, about{s}, runner.Subject(strconv.Itoa(s))); err != nil {
			return err
		}
	}
	return nil
}

// holdSnapshot opens a transaction that holds a snapshot of the database until release is called.
func (g *rig) holdSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, g.url)
	if err != nil {
		return nil, err
	}
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, `begin isolation level repeatable read; select from trapeze.live limit 1`); err != nil {
		release()
		return nil, err
	}
	return release, nil
}
