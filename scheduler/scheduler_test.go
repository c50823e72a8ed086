package scheduler_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/scheduler"
)

func TestTaskStartAndSchedulerStop(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s, err := scheduler.New(slog.New(slog.DiscardHandler))
	is.NoErr(err)
	began, ended := make(chan struct{}), make(chan error, 1)
	is.NoErr(s.Every("chore", time.Hour, func(ctx context.Context) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	<-began // long before the first hour has passed
	cancel()
	is.Equal(<-ended, context.Canceled)
	<-done // Run waits for running tasks
}

func TestSlowTaskOverlap(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s, err := scheduler.New(slog.New(slog.DiscardHandler))
	is.NoErr(err)
	running, most, rounds := make(chan struct{}, 10), 0, make(chan struct{}, 100)
	is.NoErr(s.Every("chore", 2*time.Millisecond, func(context.Context) {
		running <- struct{}{}
		most = max(most, len(running)) // safe without a lock because runs never overlap
		<-time.After(10 * time.Millisecond)
		<-running
		rounds <- struct{}{}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	for range 5 {
		<-rounds
	}
	cancel()
	<-done
	is.Equal(most, 1)
}
