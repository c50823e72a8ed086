package store

import (
	"context"
	"errors"
	"fmt"

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

// submittedSQL reads where jobs were inserted, after a reply was lost. It counts a job only if its id and all requested values match. A job that
// was started on insert has its transaction's time as both its ready time and its claim time. Plan: primary keys.
var submittedSQL = newStatement(`
select j.id, case when l.pod = @pod::uuid and l.fence = 1 and l.claimed_at = l.ready_at then 'running' when p.why = 'approval' then 'awaiting_approval'
	when p.why = 'subject' then 'waiting' when p.why is not null then 'parked' else 'pending' end, 0::bigint
from unnest(@new_id::bigint[], @new_kind::text[], @new_subject::text[], @new_unique_key::text[], @new_args::text[]) as w(id, kind, subject, unique_key, args)
join trapeze.jobs j on j.id = w.id
left join lateral (select l.* from trapeze.live l where l.id = w.id limit 1) l on true
left join lateral (select p.why from trapeze.parked p where p.id = w.id limit 1) p on true
where j.kind = w.kind and j.subject = w.subject and j.unique_key is not distinct from w.unique_key and j.args::text = w.args`)

// Submitted returns where those of the new jobs that were inserted are. A job that has been claimed since, or has ended, counts as pending. It does
// not count a different job with the same id, which can exist after a failover that lost commits.
func (s *Store) Submitted(ctx context.Context, podID string, list []*NewJob) (map[int64]Place, error) {
	found, err := run(ctx, s, scanPlaced, submittedSQL, append(newJobs.arrays(submittedSQL, list), args{{"pod", podID}}...))
	if err != nil {
		return nil, fmt.Errorf("read back jobs: %w", err)
	}
	return placesOf(found), nil
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
