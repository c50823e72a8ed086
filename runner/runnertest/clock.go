package runnertest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// moments lists the timestamp columns that affect future events. The history in done and job_events is not changed.
var moments = map[string][]string{
	"jobs":            {"created_at", "erased_at"},
	"live":            {"ready_at", "claimed_at", "started_at"},
	"parked":          {"run_after", "started_at"},
	"submissions":     {"created_at"},
	"job_progress":    {"updated_at"},
	"cancel_requests": {"created_at"},
	"claim_requests":  {"created_at", "answered_at"},
	"outbox":          {"seen_at"},
	"pods":            {"started_at", "lease_until", "closed_at", "swept_at"},
	"slot_grants":     {"wants_since"},
	"pipelines":       {"created_at"},
	"parts":           {"completed_at"},
}

// Advance moves the test's clock forward by d for jobs and schedules. It affects retry delays, waits for approval, jobs' ages, and leases.
// Each schedule fires on time at each of its occurrences within d; see [Harness.Now]. Jobs that have become due start with the next
// [Harness.RunUntilIdle]. To run one occurrence's jobs before the next occurrence, advance in steps.
//
// Trapeze uses PostgreSQL's clock, which a test cannot set. Advance therefore subtracts d from the times stored in the harness's tables, in
// one transaction. A job submitted now whose times are moved back by an hour is indistinguishable from a job submitted an hour ago. These
// stored times are therefore earlier than the real ones, while the history and the jobs' end times stay in real time. Advance does not
// change time.Now or the tables that belong to handlers or to the test.
func (h *Harness) Advance(d time.Duration) {
	h.t.Helper()
	if d < 0 {
		h.t.Fatalf("runnertest: cannot advance by %s: time does not go backwards", d)
	}
	h.fatal(h.advance(h.t.Context(), d), "advance by %s", d)
}

// advance moves the clock forward by d and fires the schedules that become due.
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

// pass moves the stored times back and advances the test's clock to now.
func (h *Harness) pass(ctx context.Context, now time.Time) error {
	d := now.Sub(h.calendar.now)
	var all pgx.Batch
	for table, columns := range moments {
		for _, column := range columns {
			// A ready_at equal to the epoch marks a job that goes before all others, so it is not changed.
			sql := fmt.Sprintf(`update trapeze.%s set %[2]s = %[2]s - $1 * interval '1 microsecond' where %[2]s > 'epoch'`, table, column)
			all.Queue(h.in(sql), d.Microseconds())
		}
	}
	if err := h.host.SendBatch(ctx, &all).Close(); err != nil {
		return fmt.Errorf("shift the stored times by %s: %w", d, err)
	}
	h.calendar.now = now
	return nil
}
