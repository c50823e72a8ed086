package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/dburl"
)

// cluster holds the database history that was read most recently. A store shares it with its clones.
type cluster struct{ history atomic.Pointer[string] }

// History returns the database history that was read most recently, or an empty string before the first read.
func (c *cluster) History() string {
	if known := c.history.Load(); known != nil {
		return *known
	}
	return ""
}

func (c *cluster) learn(history string) {
	if c.History() != history {
		c.history.Store(&history)
	}
}

// History returns the ID of the database history that was read most recently, or an empty string before the first read. A change means that
// a standby was promoted or a backup was restored, so the latest commits may be missing.
func (s *Store) History() string { return s.cluster.History() }

// ErrNoCluster is returned if the cluster table has no row, for example because all tables were truncated.
var ErrNoCluster = errors.New("the table cluster has no row")

// settleHistorySQL records the cluster's identity, and begins a new history if the identity has changed. It returns the
// history, and whether it is new. Plan: primary key lookups in cluster.
const settleHistorySQL = `
select coalesce(h::text, ''), h is distinct from (select c.history from trapeze.cluster c where c.one) from trapeze.settle_history() h`

// SettleHistory records the cluster's identity after a statement has detected a change, and returns the current history. If several
// processes call it concurrently, the first one begins the new history.
func (s *Store) SettleHistory(ctx context.Context) (string, error) {
	history, _, err := settleHistory(ctx, s, nil)
	if err == nil {
		s.cluster.learn(history)
	}
	return history, err
}

type settledHistory struct {
	History string
	Begins  bool
}

// settleHistory records the cluster's identity on the store's own pool or, if db is not nil, in the caller's transaction. begins reports
// whether that has begun a new history.
func settleHistory(ctx context.Context, s *Store, db DB) (history string, begins bool, err error) {
	found, err := QueryOrRows(ctx, s, db, pgx.RowToStructByPos[settledHistory], settleHistorySQL)
	if err == nil && found[0].History == "" {
		err = ErrNoCluster
	}
	if err != nil {
		return "", false, fmt.Errorf("record the history of the database: %w", err)
	}
	return found[0].History, found[0].Begins, nil
}

// fencesPerEpoch is the number of fences available to a job in each epoch. A fence is epoch × fencesPerEpoch + the number of committed
// claims, not counting claims lost in a failover. The factor is a power of ten to make fences readable. JavaScript can represent fences
// exactly for 900,000 epochs.
const fencesPerEpoch = 10_000_000_000

// nextFence returns an expression for the next fence of a row with the given fence. That fence is higher than the fence of any claim in an
// earlier epoch, including claims whose commits were lost. On a new timeline that no pod has noticed yet, the expression uses the epoch
// that settle_history() will write.
func nextFence(fence string) string {
	return fmt.Sprintf(`%[1]s %% 10000000000 + 1 + greatest(%[1]s - %[1]s %% 10000000000, 10000000000 * (
		select c.epoch + greatest(trapeze.timeline() - c.timeline, 0) from trapeze.cluster c where c.one))`, fence)
}

// FirstClaim reports whether this is the first claim on record for the job.
func (c *Claimed) FirstClaim() bool { return c.Fence%fencesPerEpoch == 1 }

// clusterStateSQL reads the cluster identity that the pods recorded most recently, and the current one. Plan: cluster_pkey; a backward scan
// of jobs_pkey that finds nothing unless the database has assigned ids itself.
const clusterStateSQL = `
select coalesce(c.timeline, 0), coalesce(i.timeline, 0), coalesce(i.system_id, 0) <> 0, trapeze.history() is not null, c.epoch, c.changed_at,
	coalesce((select j.id from trapeze.jobs j where j.id >= s.last_value + 1000 and j.id < s.last_value + 1000000000 and j.id % 1000 <> 0
		order by j.id desc limit 1), 0), s.last_value
from trapeze.cluster c cross join trapeze.cluster_identity() i cross join trapeze.job_ids s where c.one`

// ClusterState describes the cluster's identity and the sequence of job ids.
type ClusterState struct {
	Agreed   int  // the timeline that the pods recorded most recently; 0 if there is none
	Timeline int  // the current timeline; 0 if PostgreSQL does not report it
	Known    bool // PostgreSQL reports the system identifier
	Settled  bool // the current identity matches the recorded one
	Epoch    int64
	Changed  *time.Time // when the pods last noticed a new identity; nil if never
	Highest  int64      // the highest job id in use among the next 1,000,000,000 values of the sequence; 0 if there is none
	Sequence int64      // the first id of the block that was reserved most recently
}

// Behind reports whether the sequence is about to return ids that are already in use.
func (c ClusterState) Behind() bool { return c.Highest >= c.Sequence+blockSize }

func ReadClusterState(ctx context.Context, s *Store) (ClusterState, error) {
	found, err := Rows(ctx, s, pgx.RowToStructByPos[ClusterState], clusterStateSQL)
	if err == nil && len(found) == 0 {
		err = ErrNoCluster
	}
	if err != nil {
		return ClusterState{}, fmt.Errorf("read the identity of the cluster: %w", err)
	}
	return found[0], nil
}

// The maintenance lead is a session-level advisory lock. It is only a hint that avoids duplicate work. Every schema has its own lock,
// because one schema's pods know nothing about another schema's jobs.
const (
	// takeLeadSQL takes the lock if it is free. It must run only once per session, because a lock that was taken twice must be released
	// twice. A standby has separate locks, so a session on a standby cannot lead.
	takeLeadSQL = `select case when ` + accepts + ` then pg_try_advisory_lock(` + leadKey + `) end`
	// hasLeadSQL checks whether this session still holds the lock. Behind a pooler that was not declared, it may run in a different
	// session.
	hasLeadSQL = `
select case when ` + accepts + ` then exists (select from pg_locks l where l.locktype = 'advisory' and l.granted and l.pid = pg_backend_pid() and l.objsubid = 1
	and l.database = (select d.oid from pg_database d where d.datname = current_database())
	and (l.classid::bigint << 32 | l.objid::bigint) = ` + leadKey + `) end`
	leadKey = `(case when $1::text = 'trapeze' then 420021 else hashtextextended($1::text, 420021) end)`
)

// TakeLead takes the lead, if it is free. conn must not be used for anything else. Call TakeLead only once per connection.
func (db *Database) TakeLead(ctx context.Context, conn *pgx.Conn) (bool, error) {
	return db.lead(ctx, conn, takeLeadSQL)
}

// HasLead reports whether the connection holds the lead.
func (db *Database) HasLead(ctx context.Context, conn *pgx.Conn) (bool, error) {
	return db.lead(ctx, conn, hasLeadSQL)
}

func (db *Database) lead(ctx context.Context, conn *pgx.Conn, sql string) (bool, error) {
	var has *bool
	err := conn.QueryRow(ctx, sql, db.schema).Scan(&has)
	if err == nil && has == nil {
		err = dburl.ErrReadOnly
	}
	if err != nil {
		return false, fmt.Errorf("elect the maintenance leader: %w", err)
	}
	return *has, nil
}
