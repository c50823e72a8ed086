package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Deed is one thing that an operator did, or was refused.
type Deed struct {
	Actor   string
	Action  string // job.cancel, lane.set, …
	Target  string // what it was done to: job 7, lane default
	Refused string // why it was refused; empty: it was done
	Before  any    // as JSON; nil: nothing to tell
	After   any
}

func jobTarget(id int64) string      { return "job " + strconv.FormatInt(id, 10) }
func pipelineTarget(id int64) string { return "pipeline " + strconv.FormatInt(id, 10) }

// auditSQL writes down one deed. Plan: one insert.
const auditSQL = `
insert into trapeze.audit (actor, source, request_id, action, target, allowed, reason, before, after)
values ($1, $2, $3, $4, $5, $6, $7, $8::text::json, $9::text::json)`

// auditIn writes a deed down in the transaction of the change itself: there is never one without the other. Where it came
// from stands in ctx.
func auditIn(ctx context.Context, s *store.Store, db store.DB, d Deed) error {
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
	if err != nil {
		return nil, err
	}
	text := string(raw)
	return &text, nil
}

// Audit writes down a deed that changed nothing itself: one that was refused.
func Audit(ctx context.Context, s *store.Store, d Deed) error {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	if err := auditIn(ctx, s, s.Pool(), d); err != nil {
		return fmt.Errorf("audit %s of %s: %w", d.Action, d.Target, err)
	}
	return nil
}

// AuditRow is a row of the audit.
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

// AuditFilter selects rows of the audit; zero fields select all.
type AuditFilter struct {
	Actor  string
	Action string
	Target string
	Before int64 // rows with smaller ids: the next page goes on before the last id of this one
	Limit  int   // default 50, at most 1000
}

// auditTrailSQL lists the audit, newest first. Plan: audit_pkey backwards, stops at the limit; audit_of_target with a target.
const auditTrailSQL = `
select id, at, actor, source, request_id, action, target, allowed, reason, before, after from trapeze.audit
where ($1::text is null or actor = $1) and ($2::text is null or action = $2) and ($3::text is null or target = $3)
	and ($4::bigint is null or id < $4)
order by id desc limit $5`

// AuditTrail lists the audit, newest first.
func AuditTrail(ctx context.Context, s *store.Store, f AuditFilter) ([]AuditRow, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 50
	}
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[AuditRow], auditTrailSQL, store.Some(f.Actor), store.Some(f.Action), store.Some(f.Target),
		store.Some(f.Before), min(limit, 1000))
	if err != nil {
		return nil, fmt.Errorf("list the audit: %w", err)
	}
	return list, nil
}
