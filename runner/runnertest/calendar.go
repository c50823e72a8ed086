package runnertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/inside"
)

// calendar is the clock that schedules follow. It advances only with [Harness.Advance], and by the lease time when a pod dies, so the
// number of occurrences does not depend on the duration of the test.
type calendar struct {
	now    time.Time
	anchor map[string]time.Time // start time that the harness set for each schedule
}

// Now returns the time on the test's clock: the real time of [New], plus the time added by [Harness.Advance] and the lease time for each
// pod that has died. Schedules follow this clock. To advance to a time t, call h.Advance(t.Sub(h.Now())).
func (h *Harness) Now() time.Time { return h.calendar.now }

// startCalendar sets the clock and declares the schedules. No pod fires these schedules on its own.
func (h *Harness) startCalendar(ctx context.Context) error {
	h.calendar.anchor = map[string]time.Time{}
	if err := h.host.QueryRow(ctx, `select clock_timestamp()`).Scan(&h.calendar.now); err != nil {
		return err
	}
	if err := inside.Of(h.client).Declare(ctx); err != nil {
		return err
	}
	return h.planSchedules(ctx)
}

// planSchedules makes new, changed and resumed schedules start at the test's current time instead of the database's.
func (h *Harness) planSchedules(ctx context.Context) error {
	rows, err := h.host.Query(ctx, h.in(`select name, anchor from trapeze.schedules`))
	if err != nil {
		return err
	}
	anchors := map[string]time.Time{}
	var name string
	var anchor time.Time
	if _, err := pgx.ForEachRow(rows, []any{&name, &anchor}, func() error { anchors[name] = anchor; return nil }); err != nil {
		return err
	}
	for name, anchor := range anchors {
		if anchor.Equal(h.calendar.anchor[name]) {
			continue
		}
		sql := h.in(`update trapeze.schedules set anchor = $2, next_at = null, planned = false where name = $1`)
		if _, err := h.host.Exec(ctx, sql, name, h.calendar.now); err != nil {
			return err
		}
		h.calendar.anchor[name] = h.calendar.now
	}
	return h.fireDue(ctx)
}

// due is a schedule that fires at a given time.
type due struct {
	Name, Error string
	At          time.Time
}

// dueSchedules returns the schedules that fire next, up to a given time.
func (h *Harness) dueSchedules(ctx context.Context, until time.Time) ([]due, error) {
	kinds := slices.Collect(maps.Keys(inside.Of(h.client).Pod.Kinds))
	rows, err := h.host.Query(ctx, h.in(`select name, error, next_at from trapeze.schedules
		where planned and not paused and not removed and kind = any($1::text[]) and next_at <= $2 order by next_at, name limit 10`), kinds, until)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[due])
}

// fireDue fires the schedules that are due on the test's clock.
func (h *Harness) fireDue(ctx context.Context) error {
	inside.Of(h.client).Pod.Submitter.FireDue(ctx, &h.calendar.now)
	left, err := h.dueSchedules(ctx, h.calendar.now)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("schedule %q does not fire at %s: %s (see the log of Options.Logger)", left[0].Name, left[0].At, left[0].Error)
	}
	return err
}

// moments lists the timestamp columns that affect future events. The history in job_events and the end times in done are not changed.
var moments = map[string][]string{
	"jobs":            {"created_at", "erased_at", "throttled_at"},
	"live":            {"ready_at", "due_at", "claimed_at", "started_at", "start_by"},
	"parked":          {"run_after", "started_at", "start_by"},
	"done":            {"started_at"}, // for throttled unique keys
	"submissions":     {"created_at"},
	"job_progress":    {"updated_at"},
	"cancel_requests": {"created_at"},
	"claim_requests":  {"created_at", "answered_at"},
	"outbox":          {"seen_at"},
	"pods":            {"started_at", "lease_until", "closed_at", "swept_at"},
	"slot_grants":     {"wants_since"},
	"limits":          {"next_start", "held_until"},
	"lanes":           {"idle_since"},
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
