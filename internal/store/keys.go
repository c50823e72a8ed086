package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// reserveKeySQL takes a unique key. If the key is already taken, lockKeySQL locks it instead, so that its job cannot be claimed before this
// transaction has committed the data that the job should see. inheritKeySQL takes over the key of a job that has already ended. A key
// outlives its job if a transaction like this one had locked it when the job ended. Plan: primary key lookups.
var (
	reserveKeySQL = newStatement(`insert into trapeze.unique_keys (kind, key, job_id) values (@kind, @key, @id) on conflict (kind, key) do nothing`)
	lockKeySQL    = newStatement(`select job_id from trapeze.unique_keys where kind = @kind and key = @key for update`)
	inheritKeySQL = newStatement(`
update trapeze.unique_keys k set job_id = @id where k.kind = @kind and k.key = @key
	and not exists (select from trapeze.live l where l.id = k.job_id)
	and not exists (select from trapeze.parked p where p.id = k.job_id)`)
)

// FreeKeys frees the unique keys of the jobs in the gone CTE. It leaves a key that an open transaction has locked, because finishing a job
// must not wait for the host's transactions; reserveKeySQL takes over such a key later. Plan: unique_keys_of_job.
const FreeKeys = `freed as (
	delete from trapeze.unique_keys k using (
		select u.kind, u.key from gone g join trapeze.unique_keys u on u.job_id = g.id
		where g.unique_while is not null for update of u skip locked
	) f where k.kind = f.kind and k.key = f.key
)`

// ReserveKey takes the unique key for id, in the caller's transaction. If another job holds it, ReserveKey returns that job's id and locks
// the key. A claim of that job then waits for the caller's commit, so that the job sees the caller's writes.
func ReserveKey(ctx context.Context, s *Store, db DB, kind, key string, id int64) (holder int64, err error) {
	for range 100 {
		taken, err := do(ctx, s, db, reserveKeySQL, args{{"kind", kind}, {"key", key}, {"id", id}})
		if err != nil {
			return 0, fmt.Errorf("reserve unique key %q: %w", key, err)
		}
		if taken == 1 {
			return id, nil
		}
		err = db.QueryRow(ctx, s.In(lockKeySQL.text), kind, key).Scan(&holder)
		if err == nil {
			inherited, err := do(ctx, s, db, inheritKeySQL, args{{"kind", kind}, {"key", key}, {"id", id}})
			if err != nil {
				return 0, fmt.Errorf("reserve unique key %q: %w", key, err)
			}
			if inherited == 1 {
				return id, nil
			}
			return holder, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return 0, fmt.Errorf("reserve unique key %q: %w", key, err)
		}
		// The job that held the key was claimed between the two statements, which freed the key.
	}
	return 0, fmt.Errorf("reserve unique key %q: its holder keeps changing", key)
}

// reserveKeysSQL takes many unique keys, lockKeysSQL locks those that are taken, and inheritKeysSQL takes over those of jobs that have
// ended, as in [ReserveKey]. The first two process the keys in order. Plan: primary key lookups.
var (
	reserveKeysSQL = newStatement(`
insert into trapeze.unique_keys (kind, key, job_id)
select kind, key, job_id from unnest(@kinds::text[], @keys::text[], @ids::bigint[]) as w(kind, key, job_id) order by kind, key, job_id
on conflict (kind, key) do nothing returning job_id`)
	lockKeysSQL = newStatement(`
select k.kind, k.key, k.job_id from unnest(@kinds::text[], @keys::text[]) as w(kind, key)
join trapeze.unique_keys k on k.kind = w.kind and k.key = w.key
order by k.kind, k.key for update of k`)
	inheritKeysSQL = newStatement(`
update trapeze.unique_keys k set job_id = w.job_id
from unnest(@kinds::text[], @keys::text[], @ids::bigint[]) as w(kind, key, job_id)
where k.kind = w.kind and k.key = w.key
	and not exists (select from trapeze.live l where l.id = k.job_id)
	and not exists (select from trapeze.parked p where p.id = k.job_id)
returning w.job_id`)
)

// ReserveKeys takes the unique keys of new jobs in the caller's transaction. It returns the jobs that obtained their key or have none. The
// others are left out, because the jobs that hold their keys do the work.
func ReserveKeys(ctx context.Context, s *Store, tx pgx.Tx, list []NewJob) ([]NewJob, error) {
	type key struct{ Kind, Key string }
	wanted := map[key]int64{} // the first job that wants the key
	for _, n := range list {
		if n.UniqueKey == nil {
			continue
		}
		if k := (key{n.Kind, *n.UniqueKey}); wanted[k] == 0 {
			wanted[k] = n.ID
		}
	}
	if len(wanted) == 0 {
		return list, nil
	}
	owned := map[int64]bool{}
	take := func(sql *statement) error {
		var kinds, keys []string
		var ids []int64
		for k, id := range wanted {
			kinds, keys, ids = append(kinds, k.Kind), append(keys, k.Key), append(ids, id)
		}
		taken, err := runIn(ctx, s, tx, pgx.RowTo[int64], sql, args{{"kinds", kinds}, {"keys", keys}, {"ids", ids}})
		for _, id := range taken {
			owned[id] = true
		}
		for k, id := range wanted {
			if owned[id] {
				delete(wanted, k)
			}
		}
		return err
	}
	for try := 0; len(wanted) > 0; try++ {
		if try == 100 {
			return nil, fmt.Errorf("reserve %d unique keys: their holders keep changing", len(wanted))
		}
		if err := take(reserveKeysSQL); err != nil {
			return nil, fmt.Errorf("reserve unique keys: %w", err)
		}
		if len(wanted) == 0 {
			break
		}
		var kinds, keys []string
		for k := range wanted {
			kinds, keys = append(kinds, k.Kind), append(keys, k.Key)
		}
		type held struct {
			Kind, Key string
			Job       int64
		}
		locked, err := runIn(ctx, s, tx, pgx.RowToStructByPos[held], lockKeysSQL, args{{"kinds", kinds}, {"keys", keys}})
		if err == nil {
			err = take(inheritKeysSQL)
		}
		if err != nil {
			return nil, fmt.Errorf("reserve unique keys: %w", err)
		}
		for _, h := range locked {
			delete(wanted, key{h.Kind, h.Key}) // the holder is active, or the key was taken over
		}
		// A key that could not be locked has since been freed.
	}
	kept := make([]NewJob, 0, len(list))
	for _, n := range list {
		if n.UniqueKey == nil || owned[n.ID] {
			kept = append(kept, n)
		}
	}
	return kept, nil
}
