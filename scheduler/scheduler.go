// Package scheduler is the clock and the calendar: it knows when, never what. What must happen once on all pods together is decided by
// rows, not here.
//
// A [Scheduler] runs functions at intervals, on gocron, and at moments. A [Calendar] is an expression such as "30 2 * * *", read in a
// time zone: it computes when a schedule fires, and asks no clock.
package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
)

// Scheduler runs functions at intervals and at moments. Make one with [New].
type Scheduler struct {
	cron gocron.Scheduler
	log  *slog.Logger
	ctx  context.Context // of Run, for the functions; it ends with it
	stop context.CancelFunc
}

// New returns a scheduler that does nothing before [Scheduler.Run].
func New(log *slog.Logger) (*Scheduler, error) {
	cron, err := gocron.NewScheduler(gocron.WithStopTimeout(5 * time.Second))
	if err != nil {
		return nil, fmt.Errorf("make the scheduler: %w", err)
	}
	s := &Scheduler{cron: cron, log: log}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Every runs do now and then at every interval, ± 10 %, one at a time: a run that is late is skipped, not stacked.
func (s *Scheduler) Every(name string, interval time.Duration, do func(ctx context.Context)) error {
	_, err := s.cron.NewJob(
		gocron.DurationRandomJob(interval*9/10, interval*11/10),
		gocron.NewTask(func() { do(s.ctx) }),
		gocron.WithName(name),
		gocron.WithSingletonMode(gocron.LimitModeReschedule),
		gocron.WithStartAt(gocron.WithStartImmediately()),
	)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	return nil
}

// After runs do once, after a wait, instead of what was to run once under the same name and has not begun. Nothing runs before
// [Scheduler.Run], of which the wait then counts. Call it from one goroutine at a time for each name.
//
// It is an interval of which one run is wanted: gocron's one-time jobs are of a moment, and one that has passed before its loop looks
// at it keeps that loop busy for ever.
func (s *Scheduler) After(name string, wait time.Duration, do func(ctx context.Context)) error {
	s.cron.RemoveByTags(name)
	var once sync.Once // a short wait may come twice before the limit is known
	_, err := s.cron.NewJob(
		gocron.DurationJob(max(wait, time.Millisecond)),
		gocron.NewTask(func() { once.Do(func() { do(s.ctx) }) }),
		gocron.WithName(name), gocron.WithTags(name),
		gocron.WithLimitedRuns(1),
	)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", name, err)
	}
	return nil
}

// Run keeps the time until ctx ends, then ends the context of what runs and waits for it. Call it once.
func (s *Scheduler) Run(ctx context.Context) {
	s.cron.Start()
	<-ctx.Done()
	s.stop()
	if err := s.cron.Shutdown(); err != nil {
		s.log.WarnContext(ctx, "scheduler did not stop cleanly", "err", err)
	}
}
