package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// scheduleHealthSQL lists the schedules with the conditions that may keep them from firing. It includes how long the next occurrence has
// been due by the database's clock (if it is not planned: since the schedule was changed), the pods that could decide it, and whether its
// lane exists. Plan: schedules, pods and lanes are small.
const scheduleHealthSQL = `
select c.name, c.kind, c.lane, c.paused, c.error, c.next_at,
	coalesce(extract(epoch from clock_timestamp() - case when c.planned then c.next_at else c.updated_at end), 0)::float8,
	(select count(*) from trapeze.pods p where p.closed_at is null and p.lease_until > clock_timestamp() and c.kind = any(p.kinds))::int,
	c.lane = '' or exists (select from trapeze.lanes n where n.name = c.lane),
	c.expression, c.zone, clock_timestamp()
from trapeze.schedules c where not c.removed order by c.name`

// ScheduleHealth is the health of a schedule.
type ScheduleHealth struct {
	Name   string
	Kind   string
	Lane   string // empty: its kind's
	Paused bool
	Error  string
	Next   *time.Time // nil: not planned yet, or over
	Due    float64    // seconds since its next occurrence became due; negative: until then
	Pods   int        // live pods that list its kind
	Placed bool       // its lane exists

	Expression, Zone string
	Now              time.Time // of the database
}

// ReadScheduleHealth lists the schedules with the conditions that may keep them from firing, by name.
func ReadScheduleHealth(ctx context.Context, s *store.Store) ([]ScheduleHealth, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[ScheduleHealth], scheduleHealthSQL)
	if err != nil {
		return nil, fmt.Errorf("read how the schedules are: %w", err)
	}
	return list, nil
}
