package telemetry

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// hooked queues calls for a single hook.
type hooked struct {
	*calls
	hook Hook
}

func (h hooked) add(e job.End) { h.calls.add(h.hook, e) }

// started returns the calls for a hook, and their log, which must not be read while a call is running.
func started(hook Hook) (hooked, *strings.Builder) {
	text := &strings.Builder{}
	log := slog.New(slog.NewTextHandler(text, nil))
	return hooked{newCalls(log, NewDamped(log)), hook}, text
}

func TestEndHookSequentialCalls(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var told []int64
	c, _ := started(func(_ context.Context, e job.End) { told = append(told, e.ID) })
	var want []int64
	for i := range int64(100) {
		c.add(job.End{ID: i, State: job.Succeeded})
		want = append(want, i)
	}
	c.drain(time.Minute)
	is.Equal(told, want)
	c.add(job.End{ID: 100, State: job.Succeeded})
	c.drain(time.Minute)
	is.Equal(told, append(want, 100)) // calls continue after a pause
}

func TestSlowEndHookDropOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	begun, open := make(chan struct{}, 2*waitAtMost), make(chan struct{})
	told := map[job.State]int{}
	c, log := started(func(_ context.Context, e job.End) {
		begun <- struct{}{}
		<-open
		told[e.State]++
	})
	c.add(job.End{State: job.Cancelled})
	<-begun // all later calls are queued
	for range waitAtMost {
		c.add(job.End{State: job.Succeeded})
	}
	for range waitAtMost {
		c.add(job.End{State: job.Failed})
	}
	close(open)
	c.drain(time.Minute)
	is.Equal(told, map[job.State]int{job.Cancelled: 1, job.Succeeded: waitAtMost / 2, job.Failed: waitAtMost / 2})
	is.Equal(strings.Count(log.String(), tooSlow), 2) // once when skipping starts, and once when it is over
}

func TestEndHookPanicOrGoexit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var told []int64
	c, log := started(func(_ context.Context, e job.End) {
		told = append(told, e.ID)
		if e.ID == 1 {
			panic("out of order")
		}
		runtime.Goexit()
	})
	for id := range int64(3) {
		c.add(job.End{ID: id})
	}
	c.drain(time.Minute)
	is.True(slices.Equal(told, []int64{0, 1, 2}))
	is.Equal(strings.Count(log.String(), "hook (OnEnd, OnRetry) panicked"), 3)
	is.True(strings.Contains(log.String(), "out of order"))
}

func TestHangingEndHookAtShutdown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	begun, ended := make(chan struct{}), make(chan error, 1)
	c, log := started(func(ctx context.Context, _ job.End) {
		close(begun)
		<-ctx.Done()
		ended <- context.Cause(ctx)
	})
	for range 3 {
		c.add(job.End{})
	}
	idle := c.idle
	<-begun
	c.drain(time.Millisecond)
	is.Equal(<-ended, context.Canceled) // the hook's context is cancelled
	<-idle
	is.Equal(len(ended), 0)                                                          // the hook is not called again
	is.True(strings.Contains(log.String(), "skipping the remaining calls\" jobs=2")) // the log states how many calls were skipped
	c.add(job.End{})                                                                 // later calls are dropped
	is.True(c.idle == nil)
}
