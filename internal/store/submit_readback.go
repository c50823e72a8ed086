package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errIDTaken reports that an id was already in use, so no job was inserted under it.
var errIDTaken = errors.New("a job with this id exists already")

// IDTaken reports whether jobs were not inserted because one of their ids was in use. They can be inserted with new ids.
func (s *Store) IDTaken(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "23505" || pg.SchemaName != s.schema {
		return errors.Is(err, errIDTaken)
	}
	switch pg.ConstraintName {
	case "jobs_pkey", "live_pkey", "parked_pkey": // any of these tables may be written first
		return true
	}
	return false
}

// submittedSQL reads which jobs were inserted, after a reply was lost. It counts a job only if its id and all requested values match. Plan:
// jobs_pkey.
var submittedSQL = newStatement(`
select j.id from unnest(@ids::bigint[], @kinds::text[], @subjects::text[], @unique_keys::text[], @args::text[]) as w(id, kind, subject, unique_key, args)
join trapeze.jobs j on j.id = w.id
where j.kind = w.kind and j.subject = w.subject and j.unique_key is not distinct from w.unique_key and j.args::text = w.args`)

// Submitted reports which of the new jobs were inserted. It does not count a different job with the same id, which can exist after a
// failover that lost commits.
func (s *Store) Submitted(ctx context.Context, list []NewJob) (map[int64]bool, error) {
	var c columns
	for _, n := range list {
		c.add(n)
	}
	found, err := run(ctx, s, pgx.RowTo[int64], submittedSQL, args{{"ids", c.ids}, {"kinds", c.kinds}, {"subjects", c.subjects}, {"unique_keys", c.uniqueKeys}, {"args", c.args}})
	if err != nil {
		return nil, fmt.Errorf("read back jobs: %w", err)
	}
	set := make(map[int64]bool, len(found))
	for _, id := range found {
		set[id] = true
	}
	return set, nil
}

// assignKeySQL assigns a unique key, which was taken in this transaction, to another job. Plan: primary key lookup.
var assignKeySQL = newStatement(`update trapeze.unique_keys set job_id = @id where kind = @kind and key = @key`)

// AssignKey assigns a unique key that was taken in this transaction to a job with another id.
func AssignKey(ctx context.Context, s *Store, db DB, kind, key string, id int64) error {
	if _, err := do(ctx, s, db, assignKeySQL, args{{"kind", kind}, {"key", key}, {"id", id}}); err != nil {
		return fmt.Errorf("assign unique key %q: %w", key, err)
	}
	return nil
}
