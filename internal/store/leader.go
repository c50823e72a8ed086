package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/dburl"
)

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
