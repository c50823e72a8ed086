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

// soakSubmitters is how many goroutines submit, one job at a time each.
const soakSubmitters = 32

// soakJob knows the moment at which it was due to be submitted.
type soakJob struct {
	Due int64 `json:"due"` // nanoseconds of Unix time
}

func (soakJob) Kind() string { return "bench.soak" }

// saturating is a job of the capacity run.
type saturating struct{}

func (saturating) Kind() string { return "bench.saturating" }

// soakCapacity is how many jobs a second are submitted and worked off when nothing holds the submitters back. Its pod ends
// with it, and its jobs are dated back to yesterday, whose days retention may drop.
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

// dateBack has all that ended and happened so far be of yesterday. One transaction of a new connection, for such a one
// reports what it left dead at once: the vacuum that follows is counted after it.
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

// soakLoad submits jobs at a steady rate, whatever becomes of them, and notes how long each took to start.
type soakLoad struct {
	rate  float64                                               // jobs a second
	today time.Time                                             // when it began: what ended before belongs to the capacity run
	job   func(ctx context.Context, i int, due time.Time) error // submits the ith; handle sets it
	sent  atomic.Int64
	begun atomic.Int64

	mu        sync.Mutex
	latencies []float64 // ms from the moment at which a job was due to the call of its handler, since the last take
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

// note counts a job that begins, and how late that is.
func (p *soakLoad) note(due int64) {
	waited := ms(time.Since(time.Unix(0, due)))
	p.begun.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latencies = append(p.latencies, waited)
}

// take returns what was noted since the last call.
func (p *soakLoad) take() []float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.latencies
	p.latencies = make([]float64, 0, len(taken)+len(taken)/4)
	return taken
}

// submit submits for a while. The moments at which jobs are due are fixed beforehand: a submission that is late because
// the one before took long has waited, and its latency says so.
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

// bySubmitters has each submitter submit, and returns their errors. The first of them ends the others.
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
