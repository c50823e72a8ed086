package runnertest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// moments are the columns of the moments that decide about what is still to happen. Those of the history, in done and job_events,
// stay as they are.
var moments = map[string][]string{
	"jobs":            {"created_at"},
	"live":            {"ready_at", "claimed_at", "started_at"},
	"parked":          {"run_after", "started_at"},
	"submissions":     {"created_at"},
	"job_progress":    {"updated_at"},
	"cancel_requests": {"created_at"},
	"pods":            {"started_at", "lease_until", "closed_at", "swept_at"},
	"slot_grants":     {"wants_since"},
	"pipelines":       {"created_at"},
	"parts":           {"completed_at"},
}

// Advance lets d pass for jobs and schedules. Delays, waits for the next attempt or for approval, ages of jobs, and leases are then as they
// will be after d. Each schedule fires at each of its moments on the way, on time; see [Harness.Now]. Jobs that have become due
// start with the next [Harness.RunUntilIdle]: to have the jobs of one fire run before the next, advance in steps.
//
// The time that counts is PostgreSQL's, which nobody can set. So the moments that are stored in the harness's tables are
// moved into the past by d, in one transaction: that a job was submitted an hour ago is the same as that it was submitted just
// now and an hour has passed. Read back, such moments are earlier than they were; the history and the ends of jobs keep the
// real time. What the handlers or the test keep in tables of their own, and time.Now, are not touched.
func (h *Harness) Advance(d time.Duration) {
	h.t.Helper()
	if d < 0 {
		h.t.Fatalf("runnertest: time does not go back, by %s or at all", d)
	}
	h.fatal(h.advance(h.t.Context(), d), "advance by %s", d)
}

// advance lets d pass, with the fires of schedules in it.
func (h *Harness) advance(ctx context.Context, d time.Duration) error {
	end := h.calendar.now.Add(d.Truncate(time.Microsecond)) // as exactly as PostgreSQL counts
	if err := h.planSchedules(ctx); err != nil {
		return err
	}
	for {
		due, err := h.dueSchedules(ctx, end)
		if err != nil {
			return err
		}
		if len(due) == 0 {
			return h.pass(ctx, end)
		}
		if err := h.pass(ctx, due[0].At); err != nil {
			return err
		}
		if err := h.fireDue(ctx); err != nil {
			return err
		}
	}
}

// pass moves the stored moments into the past, so that the test's clock shows a moment.
func (h *Harness) pass(ctx context.Context, now time.Time) error {
	d := now.Sub(h.calendar.now)
	var all pgx.Batch
	for table, columns := range moments {
		for _, column := range columns {
			// A job that goes ahead of all others has the epoch as the moment at which it became due.
			sql := fmt.Sprintf(`update trapeze.%s set %[2]s = %[2]s - $1 * interval '1 microsecond' where %[2]s > 'epoch'`, table, column)
			all.Queue(h.in(sql), d.Microseconds())
		}
	}
	if err := h.host.SendBatch(ctx, &all).Close(); err != nil {
		return fmt.Errorf("move what is stored by %s: %w", d, err)
	}
	h.calendar.now = now
	return nil
}
