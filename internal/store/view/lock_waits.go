package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// lockHoldersSQL lists the sessions and prepared transactions that other sessions wait for, if those sessions use Trapeze's tables. A
// session that waits itself is not listed, but the session at the end of its chain is. Process 0 stands for a prepared transaction. The
// statement reads no Trapeze table, so a lock on one cannot delay it. Plan: reads only system views.
const lockHoldersSQL = `
with recursive locks as materialized (select * from pg_locks),
waiting as materialized (
	select l.pid, min(l.waitstart) as since from locks l
	where not l.granted and exists (
		select from locks o join pg_class c on o.locktype = 'relation' and c.oid = o.relation join pg_namespace n on n.oid = c.relnamespace
		where o.pid = l.pid and n.nspname = $1 and o.database = (select oid from pg_database where datname = current_database())
	)
	group by 1
),
chain (waiter, pid) as (
	select w.pid, b from waiting w, unnest(pg_blocking_pids(w.pid)) b
	union
	select c.waiter, b from chain c, unnest(pg_blocking_pids(c.pid)) b where c.pid <> 0
),
roots as (
	select c.pid, count(distinct c.waiter)::int as waiting, min(w.since) as since from chain c join waiting w on w.pid = c.waiter
	where c.pid = 0 or not exists (select from locks l where l.pid = c.pid and not l.granted)
	group by 1
)
select r.pid, coalesce(p.gid, ''), coalesce(a.usename::text, p.owner::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
	coalesce(left(a.query, 200), ''), r.waiting,
	extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared, r.since))::float8,
	coalesce(extract(epoch from clock_timestamp() - r.since), 0)::float8
from roots r
left join pg_stat_activity a on a.pid = r.pid
left join lateral (
	select x.gid, x.owner, x.prepared from pg_prepared_xacts x
	where r.pid = 0 and x.database = current_database() and exists (
		select from locks l join locks w on not w.granted
			and (w.locktype = 'relation' and w.relation = l.relation or w.transactionid = l.transactionid)
		where l.pid is null and l.granted and l.virtualtransaction = '-1/' || x.transaction
	)
) p on true
order by r.waiting desc, 8 desc limit 5`

// LockHolder is a session or a prepared transaction that sessions of Trapeze wait for.
type LockHolder struct {
	PID         int    // 0 for a prepared transaction
	Prepared    string // name of the prepared transaction
	User        string
	Application string
	State       string // empty if this role may not see other sessions
	Statement   string // the running or last statement, in full only for roles with pg_read_all_stats
	Waiting     int    // number of waiting sessions
	Age         float64
	Longest     float64 // seconds for which the first session has been waiting; Age and Longest are in seconds
}

// longWait is the time after which a wait for a lock counts. Statements of pods wait for each other for milliseconds.
const longWait = time.Second

// LockHolders returns the sessions and prepared transactions for which sessions of Trapeze have been waiting for more than a second.
func LockHolders(ctx context.Context, s *store.Store) ([]LockHolder, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[LockHolder], lockHoldersSQL, s.Schema())
	if err != nil {
		return nil, fmt.Errorf("find the sessions that hold locks: %w", err)
	}
	found := list[:0]
	for _, h := range list {
		if h.Longest >= longWait.Seconds() {
			found = append(found, h)
		}
	}
	return found, nil
}
