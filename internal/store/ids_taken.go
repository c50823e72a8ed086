package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errIDTaken is for an id that a statement found in use, so that it inserted nothing under it.
var errIDTaken = errors.New("a job with this id exists already")

// IDTaken reports whether jobs were not inserted because one of their ids is in use. They can be inserted under other ids.
func (s *Store) IDTaken(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "23505" || pg.SchemaName != s.schema {
		return errors.Is(err, errIDTaken)
	}
	switch pg.ConstraintName {
	case "jobs_pkey", "live_pkey", "parked_pkey": // whichever is written first
		return true
	}
	return false
}

// enqueueFreeSQL is enqueueSQL that passes by the ids that are in use, so that the caller's transaction can go on.
// Plan: as enqueueSQL; a probe of jobs_pkey a job.
var enqueueFreeSQL = strings.Replace(enqueueSQL, "traceparent, needs_approval)\n", `traceparent, needs_approval)
	where not coalesce((select true from trapeze.jobs t where t.id = w.id limit 1), false)
`, 1)

// submittedSQL reads which jobs went in, after a reply was lost: those with the id, and with all that the caller asked for.
// Plan: jobs_pkey.
const submittedSQL = `
select j.id from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) as w(id, kind, subject, unique_key, args)
join trapeze.jobs j on j.id = w.id
where j.kind = w.kind and j.subject = w.subject and j.unique_key is not distinct from w.unique_key and j.args::text = w.args`

// Submitted returns those of new jobs that were inserted. Another job under the id of one, as after a failover that lost commits, is not it.
func (s *Store) Submitted(ctx context.Context, list []NewJob) (map[int64]bool, error) {
	var c columns
	for _, n := range list {
		c.add(n)
	}
	found, err := rows(ctx, s, pgx.RowTo[int64], submittedSQL, c.ids, c.kinds, c.subjects, c.uniqueKeys, c.args)
	if err != nil {
		return nil, fmt.Errorf("read back jobs: %w", err)
	}
	set := make(map[int64]bool, len(found))
	for _, id := range found {
		set[id] = true
	}
	return set, nil
}

// renameKeySQL gives a unique key that was taken in this transaction to another job. Plan: primary key.
const renameKeySQL = `update trapeze.unique_keys set job_id = $3 where kind = $1 and key = $2`

// RenameKey makes a unique key that was taken in this transaction that of a job with another id.
func (s *Store) RenameKey(ctx context.Context, db DB, kind, key string, id int64) error {
	if _, err := db.Exec(ctx, s.in(renameKeySQL), kind, key, id); err != nil {
		return fmt.Errorf("reserve unique key %q: %w", key, err)
	}
	return nil
}
