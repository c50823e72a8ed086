package runnertest_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// scheduled registers a handler for the kind "first" that counts its calls, and declares a schedule for that kind.
func scheduled(calls *atomic.Int64, expression string, options ...runner.ScheduleOption) func(*runner.Runner) {
	return func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[first]) (*runner.Outcome, error) {
			calls.Add(1)
			return nil, nil
		})
		r.DeclareSchedule("regular", expression, first{}, options...)
	}
}

func TestHarnessScheduleAfterClockAdvance(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	h := runnertest.New(t, effects(t), runner.Options{}, scheduled(&calls, "0 9 * * *", runner.Zone("Asia/Tokyo"), runner.Subject("daily"), runner.Key("tenant")))
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(0)) // nothing fires until the clock is advanced
	for day := 1; day <= 3; day++ {
		h.Advance(24 * time.Hour)
		h.RunUntilIdle()
		is.Equal(calls.Load(), int64(day)) // once a day
	}
	fired := h.RequireEnqueued(first{})
	is.Equal(fired.Subject, "daily")
	is.Equal(fired.Key, "tenant")
	fires, err := h.Runner().Admin("").ScheduleOccurrences(t.Context(), "regular", time.Time{}, 10)
	is.NoErr(err)
	is.Equal(len(fires), 3)
	zone, err := time.LoadLocation("Asia/Tokyo")
	is.NoErr(err)
	is.Equal(fires[0].FireAt.In(zone).Hour(), 9) // in the schedule's time zone
}

func TestHarnessOperatorScheduleStart(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := runnertest.New(t, effects(t), runner.Options{}, steps)
	began := h.Now()
	h.Advance(100 * time.Hour)
	is.Equal(h.Now().Sub(began), 100*time.Hour)
	_, err := h.Runner().Admin("ann").SetSchedule(t.Context(), "set", job.ScheduleChange{Kind: new("last"), Expression: new("@every 1h")})
	is.NoErr(err)
	h.Advance(time.Hour - time.Second)
	is.Equal(len(h.Jobs("last")), 0) // on the test's clock, the schedule was set almost an hour ago, not a hundred hours ago
	h.Advance(time.Second)
	is.Equal(len(h.Jobs("last")), 1)
	_, err = h.Runner().Admin("ann").PauseSchedule(t.Context(), "set")
	is.NoErr(err)
	h.Advance(10 * time.Hour)
	is.Equal(len(h.Jobs("last")), 1) // the schedule is paused
	_, err = h.Runner().Admin("ann").ResumeSchedule(t.Context(), "set")
	is.NoErr(err)
	h.Advance(time.Hour)
	is.Equal(len(h.Jobs("last")), 2) // the schedule resumes without catching up
}

func TestHarnessSchedulesIgnoreRealTime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var calls atomic.Int64
	var h *runnertest.Harness
	h = runnertest.New(t, pool, runner.Options{}, func(r *runner.Runner) {
		scheduled(&calls, "@every 1h")(r)
		runner.Handle(r, func(ctx context.Context, _ *runner.Job[last]) (*runner.Outcome, error) {
			leases := map[time.Time]bool{}
			pgtest.Wait(t, "the pod has sent heartbeats, whose responses report when a schedule is due", func() bool {
				var until time.Time
				is.NoErr(pool.QueryRow(ctx, `select max(lease_until) from `+h.Schema()+`.pods`).Scan(&until))
				leases[until] = true
				return len(leases) > 5
			})
			return nil, nil
		})
	})
	// Pretend that the test has taken hours.
	_, err := pool.Exec(t.Context(), `update `+h.Schema()+`.schedules set anchor = anchor - interval '5 hours', next_at = next_at - interval '5 hours'`)
	is.NoErr(err)
	h.Enqueue(last{}) // starts a pod
	h.RunUntilIdle()
	is.Equal(len(h.Jobs("first")), 0)
}

func TestHarnessOccurrenceAcrossPodDeath(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	h := runnertest.New(t, effects(t), runner.Options{}, scheduled(&calls, "@every 1h"))
	h.DieAt(runnertest.AfterClaim, "first")
	h.Advance(time.Hour)
	h.RunUntilIdle()
	is.Equal(calls.Load(), int64(1))
	is.Equal(len(h.Jobs("first")), 1)
}

func TestHarnessInvalidSchedule(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := effects(t)
	var calls atomic.Int64
	said := failing(t, func(t testing.TB) { runnertest.New(t, pool, runner.Options{}, scheduled(&calls, "every day")) })
	is.True(strings.Contains(said, `declare the schedules: invalid schedule: expression "every day" has 2 fields`))
	is.True(strings.Contains(said, `(schedule "regular")`))
}
