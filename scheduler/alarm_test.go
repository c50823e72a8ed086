package scheduler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/matryer/is"
)

// A pod whose wall clock is ten minutes fast or slow waits as long as any other pod.
func TestSkewedPodWallClock(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		is := is.New(t)
		log := slog.New(slog.DiscardHandler)
		clock, err := New(log)
		is.NoErr(err)
		c := NewSubmitter(SubmitterOptions{Log: log, AlarmWithin: time.Minute})
		c.timer = clock
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.timer.Run(ctx) }()
		database := time.Now().Add(off)
		next := database.Add(100 * time.Millisecond)
		began := time.Now()
		c.Apply(database, &next)
		select {
		case <-c.due:
			is.True(time.Since(began) >= 90*time.Millisecond) // the alarm does not go off immediately, as it would with a fast clock
		case <-time.After(10 * time.Second):
			t.Error("the alarm depends on the wall clock of the process")
		}
		stop()
		<-done
	}
}
