package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// reserveKeysSQL takes unique keys. lockKeysSQL locks those that are taken, so that their jobs cannot be claimed before this transaction has
// committed the data that the jobs should see. inheritKeysSQL takes over the keys of jobs that have already ended. A key outlives its job if a
// transaction like this one had locked it when the job ended. The lateral queries with their limits keep the planner from choosing to read the
// whole table on the host's connection. Plan: primary key lookups, in the order of the arrays.
var (
	reserveKeysSQL = newStatement(`
insert into trapeze.unique_keys (kind, key, job_id) select kind, key, job_id from `, keysWanted, `
on conflict (kind, key) do nothing returning kind, key, job_id`)
	lockKeysSQL = newStatement(`
select k.kind, k.key, k.job_id from `, keysWanted, ` cross join lateral (
	select * from trapeze.unique_keys k where k.kind = w.kind and k.key = w.key and w.job_id is not null limit 1 for update) k`)
	inheritKeysSQL = newStatement(`
update trapeze.unique_keys k set job_id = w.job_id, replaced = null from `, keysWanted, ` cross join lateral (
	select k.ctid as at from trapeze.unique_keys k where k.kind = w.kind and k.key = w.key limit 1) f
where k.ctid = f.at and not exists (select from trapeze.live l where l.id = k.job_id)
	and not exists (select from trapeze.parked p where p.id = k.job_id)
returning k.kind, k.key, k.job_id`)
)

const keysWanted = `unnest(@kinds::text[], @keys::text[], @ids::bigint[]) as w(kind, key, job_id)`

// FreeKeys frees the unique keys of the jobs in the gone CTE. It leaves a key that an open transaction has locked, because finishing a job
// must not wait for the host's transactions; inheritKeysSQL takes over such a key later. Plan: unique_keys_of_job.
const FreeKeys = `freed as (
	delete from trapeze.unique_keys k using (
		select u.kind, u.key from gone g join trapeze.unique_keys u on u.job_id = g.id
		where g.unique_while is not null for update of u skip locked
	) f where k.kind = f.kind and k.key = f.key
)`

// ReserveKey takes the unique key for id, in the caller's transaction. If another job holds it, ReserveKey returns that job's id and locks
// the key. A claim of that job then waits for the caller's commit, so that the job sees the caller's writes.
func ReserveKey(ctx context.Context, s *Store, db DB, kind, key string, id int64) (holder int64, err error) {
	k := uniqueKey{kind, key}
	holders, err := reserveKeys(ctx, s, db, map[uniqueKey]int64{k: id})
	return holders[k], err
}

// ReserveKeys takes the unique keys of new jobs in the caller's transaction. It returns the jobs that obtained their key or have none. The
// others are left out, because the jobs that hold their keys do the work.
func ReserveKeys(ctx context.Context, s *Store, db DB, list []NewJob) ([]NewJob, error) {
	wanted := map[uniqueKey]int64{} // the first job that wants the key
	for _, n := range list {
		if n.UniqueKey != nil {
			k := uniqueKey{n.Kind, *n.UniqueKey}
			wanted[k] = cmp.Or(wanted[k], n.ID)
		}
	}
	holders, err := reserveKeys(ctx, s, db, wanted)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(list), func(n NewJob) bool {
		return n.UniqueKey != nil && holders[uniqueKey{n.Kind, *n.UniqueKey}] != n.ID
	}), nil
}

type uniqueKey struct{ Kind, Key string }

// reserveKeys takes unique keys for jobs, and returns the job that holds each key.
func reserveKeys(ctx context.Context, s *Store, db DB, wanted map[uniqueKey]int64) (holders map[uniqueKey]int64, err error) {
	type held struct {
		Kind, Key string
		Job       int64
	}
	holders = make(map[uniqueKey]int64, len(wanted))
	open := slices.SortedFunc(maps.Keys(wanted), func(a, b uniqueKey) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key)) })
	for try := 0; len(open) > 0; try++ {
		if try == 100 {
			return nil, fmt.Errorf("reserve %d unique keys: their holders keep changing", len(open))
		}
		for _, sql := range []*statement{reserveKeysSQL, lockKeysSQL, inheritKeysSQL} {
			if open = slices.DeleteFunc(open, func(k uniqueKey) bool { return holders[k] == wanted[k] }); len(open) == 0 {
				break
			}
			kinds, keys, ids := make([]string, len(open)), make([]string, len(open)), make([]int64, len(open))
			for i, k := range open {
				kinds[i], keys[i], ids[i] = k.Kind, k.Key, wanted[k]
			}
			found, err := askFor(ctx, s, db, pgx.RowToStructByPos[held], sql, args{{"kinds", kinds}, {"keys", keys}, {"ids", ids}})
			if err != nil {
				return nil, fmt.Errorf("reserve unique keys: %w", err)
			}
			for _, h := range found {
				holders[uniqueKey{h.Kind, h.Key}] = h.Job
			}
		}
		// A key that could neither be taken nor locked has been freed between the two statements.
		open = slices.DeleteFunc(open, func(k uniqueKey) bool { return holders[k] != 0 })
	}
	return holders, nil
}

// idempotent lists the statements that write but can safely be repeated. An unused block of ids does no harm.
var idempotent = map[string]bool{heartbeatSQL.text: true, idBlocksSQL.text: true, advanceIDsSQL: true, settleHistorySQL: true}

// repeatable reports whether a statement whose connection broke can be resent regardless of its outcome, because it only reads or is
// idempotent. After a failover, the first use of each connection fails in this way, because the server end of the connection no longer
// exists.
func repeatable(ctx context.Context, sql string, err error) bool {
	return err != nil && Unknown(err) && !pgconn.Timeout(err) && ctx.Err() == nil && (idempotent[sql] || ReadsOnly(sql))
}

// writes matches the text of statements that change data or take locks, including calls to Trapeze's SQL functions.
var writes = regexp.MustCompile(`(?i)\b(insert\s+into|update\s+trapeze|delete\s+from|truncate|for\s+(no\s+key\s+)?update|for\s+(key\s+)?share|` +
	`nextval|setval|pg_notify|set_config|pg_(try_)?advisory\w*|trapeze\.\w+\s*\()`)

// reading caches the result of [ReadsOnly] for each statement.
var reading sync.Map // statement → bool

// ReadsOnly reports whether a statement only reads. Such a statement is resent if its connection breaks.
func ReadsOnly(sql string) bool {
	if known, ok := reading.Load(sql); ok {
		return known.(bool)
	}
	reads := !writes.MatchString(sql)
	reading.Store(sql, reads)
	return reads
}
