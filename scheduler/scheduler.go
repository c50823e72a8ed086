// Package scheduler provides clocks and calendars for schedules: it computes times and knows nothing about jobs. It does not ensure
// that a run happens once across all pods: rows in the database do.
//
// A [Scheduler] runs functions at intervals, on gocron, and at given times. A [Calendar] is an expression such as "30 2 * * *" in a
// time zone: it computes when a schedule fires, and reads no clock.
package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
)

// Scheduler runs functions at intervals and at given times. Make one with [New].
type Scheduler struct {
	cron gocron.Scheduler
	log  *slog.Logger
	ctx  context.Context // passed to the functions; ends with the context of Run
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

// Every runs do at once and then at every interval, ± 10 %, one run at a time. A run that would start during another is skipped.
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

// After runs do once, after a wait. It replaces a function of the same name that has not started. Nothing runs before [Scheduler.Run],
// from which the wait counts. Call it from one goroutine at a time for each name.
//
// It uses an interval job with a limit of one run instead of gocron's one-time job. A one-time job whose time has passed before
// gocron's loop reads it keeps that loop spinning for ever.
func (s *Scheduler) After(name string, wait time.Duration, do func(ctx context.Context)) error {
	s.cron.RemoveByTags(name)
	var once sync.Once // a short interval may fire twice before the limit applies
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

// Run runs the functions until ctx ends. It then cancels the context of running functions and waits for them. Call it once.
func (s *Scheduler) Run(ctx context.Context) {
	s.cron.Start()
	<-ctx.Done()
	s.stop()
	if err := s.cron.Shutdown(); err != nil {
		s.log.WarnContext(ctx, "scheduler did not stop cleanly", "err", err)
	}
}
