package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// soakSubmitters is the number of goroutines that submit jobs. Each submits one job at a time.
const soakSubmitters = 32

// soakJob is a job that carries the time at which it was due to be submitted.
type soakJob struct {
	Due int64 `json:"due"` // Unix nanoseconds
}

func (soakJob) Kind() string { return "bench.soak" }

// saturating is a no-op job for measuring the capacity.
type saturating struct{}

func (saturating) Kind() string { return "bench.saturating" }

// soakCapacity returns how many jobs per second can be submitted and run if submissions are not throttled. It uses a separate pod.
// Afterwards, it backdates the jobs to yesterday, so that retention can drop them.
func (g *rig) soakCapacity(ctx context.Context, length time.Duration) (rate float64, err error) {
	r, err := runner.New(g.pool, runner.Options{RetainSucceeded: -1, RetainEvents: -1})
	if err != nil {
		return 0, err
	}
	pod := &rig{pool: g.pool, r: r, url: g.url, end: []func(){r.Close}}
	defer pod.close()
	runner.Handle(r, func(context.Context, *runner.Job[saturating]) (*runner.Outcome, error) { return nil, nil })
	pod.start(ctx)
	var sent atomic.Int64
	began := time.Now()
	err = bySubmitters(ctx, func(ctx context.Context, _ int) error {
		for time.Since(began) < length {
			if _, err := r.Enqueue(ctx, saturating{}); err != nil {
				return err
			}
			sent.Add(1)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := pod.drained(ctx); err != nil {
		return 0, err
	}
	rate = float64(sent.Load()) / time.Since(began).Seconds()
	if err := g.counted(ctx, int(sent.Load()), `select count(*) from trapeze.done where state = 'succeeded'`); err != nil {
		return 0, err
	}
	if err := g.dateBack(ctx); err != nil {
		return 0, fmt.Errorf("date back: %w", err)
	}
	return rate, g.tidy(ctx)
}

// dateBack moves all finished jobs and all events to yesterday. It uses a new connection, because a session reports its dead rows when it
// closes: the statistics then include the dead rows before the vacuum that follows.
func (g *rig) dateBack(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, g.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update trapeze.done set finished_at = finished_at - interval '1 day'`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update trapeze.job_events set at = at - interval '1 day'`)
		return err
	})
}

// soakLoad submits jobs at a steady rate, whether or not earlier jobs have finished, and records how long each job took to start.
type soakLoad struct {
	rate  float64                                               // jobs per second
	today time.Time                                             // start of the UTC day; jobs that finished earlier belong to the capacity run
	job   func(ctx context.Context, i int, due time.Time) error // submits job number i; set by handle
	sent  atomic.Int64
	begun atomic.Int64

	mu        sync.Mutex
	latencies []float64 // milliseconds between a job's due time and its handler's start, since the previous take
}

func newSoakLoad(rate float64) *soakLoad {
	now := time.Now().UTC()
	return &soakLoad{rate: rate, today: now.Truncate(24 * time.Hour)}
}

func (p *soakLoad) handle(r *runner.Runner) {
	runner.Handle(r, func(_ context.Context, j *runner.Job[soakJob]) (*runner.Outcome, error) {
		p.note(j.Args.Due)
		return nil, nil
	})
	p.job = func(ctx context.Context, _ int, due time.Time) error {
		_, err := r.Enqueue(ctx, soakJob{due.UnixNano()})
		return err
	}
}

// note records the start of a job and its latency.
func (p *soakLoad) note(due int64) {
	waited := ms(time.Since(time.Unix(0, due)))
	p.begun.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latencies = append(p.latencies, waited)
}

// take returns the latencies recorded since the previous call.
func (p *soakLoad) take() []float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.latencies
	p.latencies = make([]float64, 0, len(taken)+len(taken)/4)
	return taken
}

// submit submits jobs for the given time. The due times are fixed in advance: if a slow submission delays the next one, the next job's
// latency includes the delay.
func (p *soakLoad) submit(ctx context.Context, began time.Time, length time.Duration) error {
	return bySubmitters(ctx, func(ctx context.Context, first int) error {
		for i := first; ; i += soakSubmitters {
			after := time.Duration(float64(i) / p.rate * float64(time.Second))
			if after >= length {
				return nil
			}
			due := began.Add(after)
			if err := soakUntil(ctx, due); err != nil {
				return err
			}
			if err := p.job(ctx, i, due); err != nil {
				return err
			}
			p.sent.Add(1)
		}
	})
}

// bySubmitters runs submit in several goroutines and returns their errors. The first error cancels the others.
func bySubmitters(ctx context.Context, submit func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range soakSubmitters {
		all.Go(func() {
			if err := submit(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
