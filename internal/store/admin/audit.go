package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// AuditEntry describes one operator action, whether it was performed or refused.
type AuditEntry struct {
	Actor   string
	Action  string // such as job.cancel or lane.set
	Target  string // the object of the action, such as job 7 or lane default
	Refused string // why the action was refused, or empty if it was not
	Before  any    // the old value, stored as JSON; nil if there is none
	After   any
}

func jobTarget(id int64) string      { return "job " + strconv.FormatInt(id, 10) }
func pipelineTarget(id int64) string { return "pipeline " + strconv.FormatInt(id, 10) }

// auditSQL writes one audit entry. Plan: one insert.
const auditSQL = `
insert into trapeze.audit (actor, source, request_id, action, target, allowed, reason, before, after)
values ($1, $2, $3, $4, $5, $6, $7, $8::text::json, $9::text::json)`

// auditIn writes an audit entry in the transaction that makes the change, so that neither is committed without the other. It takes the
// request's origin from ctx.
func auditIn(ctx context.Context, s *store.Store, db store.DB, d AuditEntry) error {
	before, err := asJSON(d.Before)
	if err != nil {
		return err
	}
	after, err := asJSON(d.After)
	if err != nil {
		return err
	}
	from := job.OriginOf(ctx)
	why := from.Reason
	if d.Refused != "" {
		why = d.Refused
	}
	_, err = db.Exec(ctx, s.In(auditSQL), d.Actor, from.Source, from.RequestID, d.Action, d.Target, d.Refused == "", why, before, after)
	return err
}

func asJSON(v any) (*string, error) {
	if v == nil {
		return nil, nil
	}
	raw, err := json.Marshal(v)
	return new(string(raw)), err
}

// Audit writes an audit entry for an action that changes nothing, such as a refused request, a sign-in or a read.
func Audit(ctx context.Context, s *store.Store, d AuditEntry) error {
	return text.Wrap(s.Tx(ctx, func(tx pgx.Tx) error { return auditIn(ctx, s, tx, d) }), "record %s of %s in the audit log", d.Action, d.Target)
}

// AuditRow is one row in the audit log.
type AuditRow struct {
	ID        int64           `json:"id,string"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	Source    string          `json:"source"`
	RequestID string          `json:"request_id"`
	Action    string          `json:"action"`
	Target    string          `json:"target"`
	Allowed   bool            `json:"allowed"`
	Reason    string          `json:"reason"`
	Before    json.RawMessage `json:"before"`
	After     json.RawMessage `json:"after"`
}

// AuditFilter selects rows of the audit log. Zero fields match everything.
type AuditFilter struct {
	Actor  string
	Action string
	Target string
	Before int64 // return only rows with lower ids; pass the last id of the previous page
	Limit  int   // the default is 50, the maximum 1000
}

// auditTrailSQL lists the audit log, newest first. Plan: audit_pkey backwards, stops at the limit; audit_of_target if a target is given.
const auditTrailSQL = `
select id, at, actor, source, request_id, action, target, allowed, reason, before, after from trapeze.audit
where ($1::text is null or actor = $1) and ($2::text is null or action = $2) and ($3::text is null or target = $3)
	and ($4::bigint is null or id < $4)
order by id desc limit $5`

// AuditTrail lists the audit log, newest first.
func AuditTrail(ctx context.Context, s *store.Store, f AuditFilter) ([]AuditRow, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[AuditRow], auditTrailSQL, store.Some(f.Actor), store.Some(f.Action), store.Some(f.Target),
		store.Some(f.Before), view.PageSize(f.Limit))
	return list, text.Wrap(err, "list audit entries")
}

// inTx returns what do returns, in a transaction.
func inTx[T any](ctx context.Context, s *store.Store, do func(tx pgx.Tx) (T, error)) (result T, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) (err error) {
		result, err = do(tx)
		return err
	})
	return result, err
}

// withAudit makes a change and writes its audit entry in one transaction. The callback do makes the change and can fill in the entry. If
// nothing has changed, do clears the entry's action, and no entry is written.
func withAudit(ctx context.Context, s *store.Store, d AuditEntry, do func(ctx context.Context, tx pgx.Tx, d *AuditEntry) error) error {
	what := d.Action + " " + d.Target
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		d := d
		if err := do(ctx, tx, &d); err != nil || d.Action == "" {
			return err
		}
		return auditIn(ctx, s, tx, d)
	})
	return text.Wrap(err, "%s", what)
}

// operatorEventSQL writes the event for an operator's change to a lane, a pod, the queue, a schedule, a kind's retention or a limit.
// Plan: one insert.
const operatorEventSQL = `
insert into trapeze.job_events (event_no, pod, event, actor, message, fields)
select 1, $1::uuid, e.name, $3, $4, $5::text::json
from unnest(array['lane.changed', 'lane.drained', 'lane.undrained', 'pod.drained', 'pod.undrained', 'queue_state.paused', 'queue_state.resumed',
	'queue_state.frozen', 'queue_state.unfrozen', 'schedule.changed', 'schedule.deleted', 'schedule.paused', 'schedule.resumed', 'retention.changed',
	'limit.changed']) as e(name)
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

// Actor returns an operator's name in the form stored in the audit log. An empty name becomes operator.
func Actor(name string) string { return job.Storable(cmp.Or(name, "operator"), 200) }
