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
