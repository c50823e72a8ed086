package admin

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// checkTokenSQL checks a completion token. Its lock serializes the completions of one job with each other and with the transaction that
// makes the job wait. Plan: deferrals_pkey.
const checkTokenSQL = `select token = $2 from trapeze.deferrals where id = $1 for update` // #nosec G101 -- compares a token, and contains none

// completeSQL stores one part of a job. If the job is already waiting, it also counts the part in the job's fan-out. It has no effect if
// the part is already stored or the job is no longer waiting for it. A lock serializes it with a statement that finishes the job
// concurrently. Plan: primary key lookups, one row each.
const completeSQL = `
with f as materialized (
	select open, ended from trapeze.fan_outs where id = $1 for update
), kept as (
	insert into trapeze.parts (id, part, result, error)
	select $1, $2, $3::json, $4 where not exists (select from f where open = 0 or ended)
	on conflict (id, part) do nothing
	returning id
), branches as (
	select id, case when $4::text is null then 'succeeded' else 'failed' end, false from kept where exists (select from f)
), ` + store.NoParents + `, ` + store.CountBranches + `
select exists (select from kept) or exists (select from trapeze.parts where id = $1 and part = $2),
	coalesce((select due from counted), false)`

// Complete stores the result of one part of a deferred job. failure is the error message of a failed part, and empty for a successful one.
// Completing the same part again has no effect. due reports whether the job's fan-out must be settled. If operator is not empty, an audit
// entry is written.
//
// Complete returns [job.ErrNotFound] if no job with this id has issued a token, [job.ErrWrongToken] if the token does not match, and
// [job.ErrAlreadyTerminal] if all parts are complete or the job has ended.
func Complete(ctx context.Context, s *store.Store, id int64, token, part string, result json.RawMessage, failure, operator string) (due bool, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		matches, err := store.QueryPinned(ctx, tx, pgx.RowTo[bool], s.In(checkTokenSQL), []any{id, token})
		switch {
		case err != nil:
			return err
		case len(matches) == 0:
			return job.ErrNotFound
		case !matches[0]:
			return job.ErrWrongToken
		}
		type answer struct{ Known, Due bool }
		found, err := store.QueryPinned(ctx, tx, pgx.RowToStructByPos[answer], s.In(completeSQL), []any{id, part, store.Some(string(result)), store.Some(failure)})
		if err != nil {
			return err
		}
		if !found[0].Known {
			return job.ErrAlreadyTerminal
		}
		if due = found[0].Due; operator == "" {
			return nil
		}
		return auditIn(ctx, s, tx, AuditEntry{Actor: operator, Action: "job.complete", Target: jobTarget(id),
			After: map[string]any{"part": part, "failed": failure != ""}})
	})
	return due, text.Wrap(err, "complete job %d", id)
}

// partsSQL lists a deferred job's parts, ordered by name. Plan: parts_pkey, stops at the limit.
const partsSQL = `
select part, case when error is null then 'succeeded' else 'failed' end, error, result
from trapeze.parts where id = $1 and (part > $2 or $2 = '') order by part limit $3`

// Parts returns up to limit parts of a deferred job, starting after the part with the given name. If after is empty, it starts with the
// unnamed part.
func Parts(ctx context.Context, s *store.Store, id int64, after string, limit int) ([]view.BranchEnd, error) {
	list, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (b view.BranchEnd, err error) {
		var result []byte
		err = row.Scan(&b.Part, &b.State, &b.Error, &result)
		b.Result = result
		return b, err
	}, partsSQL, id, after, limit)
	return list, text.Wrap(err, "read the parts of job %d", id)
}
