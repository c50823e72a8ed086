package runner

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/scheduler"
)

// FireAt decides what is due at a moment that the database's clock is said to show, on a runner that need not run.
func (r *Runner) FireAt(ctx context.Context, at time.Time) {
	if r.calendar.kinds == nil {
		r.calendar.kinds = slices.Sorted(maps.Keys(r.kinds))
	}
	r.fireDue(ctx, &at)
}

// A pod whose wall clock is ten minutes off, either way, waits as long as any other.
func TestThePodsWallClockDoesNotCount(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		is := is.New(t)
		r, err := New(pgtest.Pool(t), Options{Logger: slog.New(slog.DiscardHandler)})
		is.NoErr(err)
		t.Cleanup(r.Close)
		c := r.calendar
		if c.clock, err = scheduler.New(r.log); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.clock.Run(ctx) }()
		database := time.Now().Add(off)
		next := database.Add(100 * time.Millisecond)
		began := time.Now()
		c.told(database, &next)
		select {
		case <-c.due:
			is.True(time.Since(began) >= 90*time.Millisecond) // not at once, as by a clock that is ahead
		case <-time.After(10 * time.Second):
			t.Error("the alarm goes by the wall clock of the process")
		}
		stop()
		<-done
	}
}
