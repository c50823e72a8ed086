package scheduler_test

import (
	"context"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/scheduler"
)

// running returns a scheduler that runs until the test ends.
func running(t *testing.T) *scheduler.Scheduler {
	t.Helper()
	s, err := scheduler.New(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	return s
}

func run(t *testing.T, s *scheduler.Scheduler) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// wait returns the next value from a channel. It fails the test if none arrives within a minute.
func wait[T any](t *testing.T, what <-chan T) T {
	t.Helper()
	select {
	case v := <-what:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing arrived within a minute")
		panic("unreachable")
	}
}

func TestAlarmSetRepeatedly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		s := running(t)
		began := time.Now()
		rang := make(chan time.Duration, 10)
		do := func(context.Context) { rang <- time.Since(began) }
		is.NoErr(s.After("calendar", time.Hour, do))
		is.NoErr(s.After("calendar", 2*time.Hour, do))
		is.NoErr(s.After("other", 90*time.Minute, do))
		is.NoErr(s.After("calendar", time.Minute, do))
		is.Equal((<-rang).Round(time.Second), time.Minute)    // moved to an earlier time
		is.Equal((<-rang).Round(time.Second), 90*time.Minute) // the alarm with the other name is unaffected
		time.Sleep(24 * time.Hour)                            // synthetic time
		is.Equal(len(rang), 0)                                // replaced alarms never go off
	})
}

func TestAlarmDueBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		s, err := scheduler.New(slog.New(slog.DiscardHandler))
		is.NoErr(err)
		rang := make(chan struct{}, 10)
		is.NoErr(s.After("calendar", -time.Second, func(context.Context) { rang <- struct{}{} }))
		time.Sleep(time.Hour)
		is.Equal(len(rang), 0) // the alarm does not go off before Run is called
		run(t, s)
		<-rang
	})
}

func TestAlarmSetFromWithin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := running(t)
	before := runtime.NumGoroutine()
	done := make(chan struct{})
	n := 0
	var do func(context.Context)
	do = func(context.Context) {
		if n++; n == 500 {
			close(done)
			return
		}
		_ = s.After("calendar", time.Hour, do)
		_ = s.After("calendar", 0, do)
	}
	is.NoErr(s.After("calendar", 0, do))
	wait(t, done)
	is.True(runtime.NumGoroutine() < before+100) // a margin for goroutines of other tests
}

func TestAlarmDuringSchedulerStop(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s, err := scheduler.New(slog.New(slog.DiscardHandler))
	is.NoErr(err)
	began, ended := make(chan struct{}), make(chan error, 1)
	is.NoErr(s.After("calendar", 0, func(ctx context.Context) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	wait(t, began)
	cancel()
	is.Equal(wait(t, ended), context.Canceled)
	wait(t, done) // Run waits for the alarm's function
}

// TestStoppingKeepsNoProcessorBusy stops a scheduler while a function is still running. Time in the bubble advances only while all
// goroutines are waiting, so the function returns only if the scheduler does not keep a CPU busy.
func TestStoppingKeepsNoProcessorBusy(t *testing.T) {
	t.Parallel()
	tooLong := time.AfterFunc(time.Minute, func() { panic("the scheduler kept a processor busy for a minute") }) // real time
	defer tooLong.Stop()
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		s, err := scheduler.New(slog.New(slog.DiscardHandler))
		is.NoErr(err)
		began := make(chan struct{})
		returned := false
		is.NoErr(s.After("calendar", 0, func(ctx context.Context) {
			close(began)
			<-ctx.Done()
			time.Sleep(4 * time.Second)
			returned = true
		}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-began; cancel() }()
		s.Run(ctx)
		is.True(returned)
	})
}
