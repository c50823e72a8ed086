// Package scheduler decides when schedules fire, and submits their jobs. Programs can rely on [Parse] and [Preview] only: the other names may
// change in any release.
//
// A [Calendar] represents an expression such as "30 2 * * *" in a time zone. It computes when a schedule fires, without reading a clock. A
// [Scheduler] runs functions at intervals, using gocron, and at given times. Neither knows anything about jobs.
//
// A [Submitter] turns due schedules into jobs. The database decides when a schedule is due: the submitter learns the time from a
// heartbeat's response ([Submitter.Apply]) and waits until then. It locks the due schedules and decides which of their occurrences submit jobs, according to
// their policies for missed occurrences, overlaps and unique keys. It writes the occurrences, the jobs and the next due times in one commit,
// so that each occurrence is processed only once, no matter how many pods there are. Package pod runs the submitter and prepares its jobs.
//
// Host programs do not import this package: they declare schedules with package runner.
package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"
)

// Scheduler runs functions at intervals and at given times. Create one with [New].
type Scheduler struct {
	cron gocron.Scheduler
	log  *slog.Logger
	ctx  context.Context // passed to the functions; cancelled when the context of Run is done
	stop context.CancelFunc

	starting sync.Mutex // held to add a function to running, or to prevent any from being added
	running  sync.WaitGroup
}

// patience is the time limit for running functions to return after the scheduler has been stopped.
const patience = 5 * time.Second

// New returns a scheduler that does nothing until [Scheduler.Run] is called.
func New(log *slog.Logger) (*Scheduler, error) {
	cron, err := gocron.NewScheduler(gocron.WithStopTimeout(time.Second))
	if err != nil {
		return nil, fmt.Errorf("make the scheduler: %w", err)
	}
	s := &Scheduler{cron: cron, log: log}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Every runs do immediately and then at every interval, ± 10 %. If do is still running when it is due again, that run is skipped.
func (s *Scheduler) Every(name string, interval time.Duration, do func(ctx context.Context)) error {
	_, err := s.cron.NewJob(
		gocron.DurationRandomJob(interval*9/10, interval*11/10),
		gocron.NewTask(func() { s.call(do) }),
		gocron.WithName(name),
		gocron.WithSingletonMode(gocron.LimitModeReschedule),
		gocron.WithStartAt(gocron.WithStartImmediately()),
	)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	return nil
}

// After runs do once, after a wait. It replaces a function of the same name that has not started. If [Scheduler.Run] has not been called
// yet, the wait starts when it is called. For each name, call After from only one goroutine at a time.
//
// It uses an interval job with a limit of one run instead of gocron's one-time job. If the time of a one-time job passes before gocron's
// loop reads it, that loop spins forever.
func (s *Scheduler) After(name string, wait time.Duration, do func(ctx context.Context)) error {
	s.cron.RemoveByTags(name)
	var called atomic.Bool // a short interval may fire twice before the limit applies
	_, err := s.cron.NewJob(
		gocron.DurationJob(max(wait, time.Millisecond)),
		gocron.NewTask(func() {
			if called.CompareAndSwap(false, true) {
				s.call(do)
			}
		}),
		gocron.WithName(name), gocron.WithTags(name),
		gocron.WithLimitedRuns(1),
	)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	return nil
}

// call calls do, unless the scheduler has been stopped.
func (s *Scheduler) call(do func(ctx context.Context)) {
	if s.begin() {
		defer s.running.Done()
		do(s.ctx)
	}
}

func (s *Scheduler) begin() bool {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.running.Add(1)
	return true
}

// Run runs the functions until ctx is done. It then cancels the context of running functions and waits at most 5 seconds for them to
// return. Call it only once.
//
// Run waits for the functions itself because gocron's Shutdown keeps a CPU busy until the last function has returned.
func (s *Scheduler) Run(ctx context.Context) {
	s.cron.Start()
	<-ctx.Done()
	s.starting.Lock()
	s.stop()
	s.starting.Unlock()
	returned := make(chan struct{})
	go func() { defer close(returned); s.running.Wait() }()
	select {
	case <-returned:
	case <-time.After(patience):
	}
	if err := s.cron.Shutdown(); err != nil {
		s.log.WarnContext(ctx, "scheduler did not stop cleanly", "err", err)
	}
}
