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

// Advance lets d pass for the jobs: what waits for a moment, for its next attempt or for approval, how old a job is, and leases
// are then as they will be after d. What has become due by that starts with the next [Harness.RunUntilIdle].
//
// The time that counts is PostgreSQL's, which nobody can set. So the moments that are stored in the harness's tables are
// moved into the past by d, in one transaction: that a job was submitted an hour ago is the same as that it was submitted just
// now and an hour has passed. Read back, such moments are earlier than they were; the history and the ends of jobs keep the
// real time. What the handlers or the test keep in tables of their own, and time.Now, are not touched.
//
// Schedules do not fire by it: they go by the calendar. What a schedule's job does is tested by submitting it, when it fires by
// [runner.Admin.TriggerSchedule] and `trapeze cron next`.
func (h *Harness) Advance(d time.Duration) {
	h.t.Helper()
	if d < 0 {
		h.t.Fatalf("runnertest: time does not go back, by %s or at all", d)
	}
	h.fatal(h.advance(h.t.Context(), d), "advance by %s", d)
}

func (h *Harness) advance(ctx context.Context, d time.Duration) error {
	return pgx.BeginFunc(ctx, h.host, func(tx pgx.Tx) error {
		for table, columns := range moments {
			for _, column := range columns {
				// A job that goes ahead of all others has the epoch as the moment at which it became due.
				sql := fmt.Sprintf(`update trapeze.%s set %[2]s = %[2]s - $1 * interval '1 microsecond' where %[2]s > 'epoch'`, table, column)
				if _, err := tx.Exec(ctx, h.in(sql), d.Microseconds()); err != nil {
					return fmt.Errorf("%s.%s: %w", table, column, err)
				}
			}
		}
		return nil
	})
}
