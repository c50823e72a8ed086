package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// scheduleHealthSQL lists schedules with the conditions that may keep them from firing, including the number of pods that could handle the
// next occurrence, whether the schedule's lane exists, and how long the next occurrence has been due by the database's clock. For a
// schedule that is not planned yet, the latter is the time since the schedule was changed. Plan: schedules, pods and lanes are small
// tables.
const scheduleHealthSQL = `
select c.name, c.kind, c.lane, c.paused, c.error, c.next_at,
	coalesce(extract(epoch from clock_timestamp() - case when c.planned then c.next_at else c.updated_at end), 0)::float8,
	(select count(*) from trapeze.pods p where p.closed_at is null and p.lease_until > clock_timestamp() and c.kind = any(p.kinds))::int,
	c.lane = '' or exists (select from trapeze.lanes n where n.name = c.lane),
	c.expression, c.zone, clock_timestamp()
from trapeze.schedules c where not c.removed order by c.name`

// ScheduleHealth describes a schedule's health.
type ScheduleHealth struct {
	Name   string
	Kind   string
	Lane   string // empty means the default lane of its kind
	Paused bool
	Error  string
	Next   *time.Time // nil if the next occurrence has not been planned yet or there are no more
	Due    float64    // seconds since the next occurrence became due; negative if it is in the future
	Pods   int        // number of live pods that handle its kind
	Placed bool       // whether its lane exists

	Expression, Zone string
	Now              time.Time // the time on the database's clock
}

// ReadScheduleHealth returns the schedules, ordered by name, with the conditions that may keep them from firing.
func ReadScheduleHealth(ctx context.Context, s *store.Store) ([]ScheduleHealth, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[ScheduleHealth], scheduleHealthSQL)
	if err != nil {
		return nil, fmt.Errorf("read the state of the schedules: %w", err)
	}
	return list, nil
}
