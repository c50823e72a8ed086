//go:build long

package runnertest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestOccurrencesWithinClockAdvance(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	h := runnertest.New(t, effects(t), runner.Options{}, scheduled(&calls, "@every 15m"))
	h.Advance(15*time.Minute - time.Microsecond)
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(0))
	h.Advance(time.Microsecond)
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(1)) // the schedule fires exactly to the microsecond
	h.Advance(3 * time.Hour)
	is.Equal(len(h.Jobs("first")), 13) // one call to Advance fires every occurrence
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(13))
	jobs := h.Jobs("first")
	is.True(jobs[12].CreatedAt.Sub(jobs[11].CreatedAt) >= 15*time.Minute) // each job was created at its scheduled time
}

func TestScheduleSkipsOverlap(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	h := runnertest.New(t, effects(t), runner.Options{}, scheduled(&calls, "@every 1h", runner.SkipOverlap()))
	h.Advance(2 * time.Hour)
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(1)) // at the second occurrence, the first job was still pending
	h.Advance(time.Hour)
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(2))
}
