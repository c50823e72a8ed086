package admin

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// operatorEventSQL writes what an operator did to a lane, a pod, the gate, a schedule or the retention of a kind into the history of everything. Plan: one insert.
const operatorEventSQL = `
insert into trapeze.job_events (event_no, boot, event, actor, message, fields)
select 1, $1::uuid, e.name, $3, $4, $5::text::json
from unnest(array['lane.changed', 'lane.drained', 'lane.resumed', 'pod.drained', 'pod.resumed', 'gate.paused', 'gate.unpaused',
	'schedule.changed', 'schedule.deleted', 'schedule.paused', 'schedule.resumed', 'retention.changed']) as e(name)
where e.name = $2`

// operation is one change by an operator: its deed for the audit, and its event.
type operation struct {
	Deed
	Boot  *string // of the pod that it is about
	Event string
	About string // the name of the lane, the pod, the schedule or the kind, or what the gate is closed for
}

// operates writes an operation down in the transaction of its change, and tells the pods when that commits.
func operates(ctx context.Context, s *store.Store, tx pgx.Tx, o operation) error {
	if err := auditIn(ctx, s, tx, o.Deed); err != nil {
		return err
	}
	fields, err := asJSON(map[string]any{"before": o.Before, "after": o.After})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.In(operatorEventSQL), o.Boot, o.Event, o.Actor, o.About, fields); err != nil {
		return err
	}
	return s.NotifySettings(ctx, tx)
}

// errDry ends the transaction of a dry run, with nothing done.
var errDry = errors.New("dry run")
