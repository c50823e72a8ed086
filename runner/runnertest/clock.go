package runnertest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// moments lists the columns with times on which future events depend. The history in done and job_events is not changed.
var moments = map[string][]string{
	"jobs":            {"created_at", "erased_at"},
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

// Advance moves the test's time forward by d for jobs and schedules. Delays, waits for the next attempt or for approval, ages of jobs, and
// leases are then as they will be after d. Each schedule fires on time at each occurrence within d; see [Harness.Now]. Jobs that have
// become due start with the next [Harness.RunUntilIdle]. To run the jobs of one occurrence before the next, advance in steps.
//
// Trapeze uses PostgreSQL's clock, which a test cannot set. Advance therefore moves the times that are stored in the harness's tables into
// the past by d, in one transaction. A job that was submitted an hour ago is the same as one that was submitted just now, seen an hour
// later. These times read earlier than before; the history and the ends of jobs keep the real time. Advance does not change tables of the
// handlers or the test, nor time.Now.
func (h *Harness) Advance(d time.Duration) {
	h.t.Helper()
	if d < 0 {
		h.t.Fatalf("runnertest: time does not go back, by %s or at all", d)
	}
	h.fatal(h.advance(h.t.Context(), d), "advance by %s", d)
}

// advance moves the time forward by d and fires the schedules within it.
func (h *Harness) advance(ctx context.Context, d time.Duration) error {
	end := h.calendar.now.Add(d.Truncate(time.Microsecond)) // PostgreSQL's resolution
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

// pass moves the stored times into the past, so that the test's clock shows now.
func (h *Harness) pass(ctx context.Context, now time.Time) error {
	d := now.Sub(h.calendar.now)
	var all pgx.Batch
	for table, columns := range moments {
		for _, column := range columns {
			// The epoch as ready_at marks a job that goes before all others.
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
