package admin

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// operatorEventSQL writes the event for an operator's change to a lane, a pod, the queue, a schedule or a kind's retention. Plan: one
// insert.
const operatorEventSQL = `
insert into trapeze.job_events (event_no, pod, event, actor, message, fields)
select 1, $1::uuid, e.name, $3, $4, $5::text::json
from unnest(array['lane.changed', 'lane.drained', 'lane.resumed', 'pod.drained', 'pod.resumed', 'queue_state.paused', 'queue_state.unpaused',
	'queue_state.frozen', 'queue_state.thawed', 'schedule.changed', 'schedule.deleted', 'schedule.paused', 'schedule.resumed', 'retention.changed']) as e(name)
where e.name = $2`

// operation describes one change by an operator, with its audit entry and its event.
type operation struct {
	AuditEntry
	PodID *string // the affected pod, if any
	Event string
	About string // the name of the lane, pod, schedule or kind, or paused or frozen for the queue
}

// operates records an operation in the transaction that makes the change, and notifies the pods on commit.
func operates(ctx context.Context, s *store.Store, tx pgx.Tx, o operation) error {
	if err := auditIn(ctx, s, tx, o.AuditEntry); err != nil {
		return err
	}
	fields, err := asJSON(map[string]any{"before": o.Before, "after": o.After})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.In(operatorEventSQL), o.PodID, o.Event, o.Actor, o.About, fields); err != nil {
		return err
	}
	return s.NotifySettings(ctx, tx)
}

// errDry makes a dry run roll back its transaction.
var errDry = errors.New("dry run")
