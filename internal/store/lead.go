package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/dburl"
)

// The lead of the maintenance is an advisory lock of a session: a hint that saves work, and no more. Every schema has its own, for
// the pods of another know nothing of this one's jobs.
const (
	// takeLeadSQL takes the lock if nobody has it. Never asked twice in a session: it would have to be given back as often. A
	// standby has locks of its own: those of a session that stayed there lead nothing.
	takeLeadSQL = `select case when ` + accepts + ` then pg_try_advisory_lock(` + leadKey + `) end`
	// hasLeadSQL asks whether this session has it: behind a pooler that nobody told of, it may be another one than it was.
	hasLeadSQL = `
select case when ` + accepts + ` then exists (select from pg_locks l where l.locktype = 'advisory' and l.granted and l.pid = pg_backend_pid() and l.objsubid = 1
	and l.database = (select d.oid from pg_database d where d.datname = current_database())
	and (l.classid::bigint << 32 | l.objid::bigint) = ` + leadKey + `) end`
	leadKey = `(case when $1::text = 'trapeze' then 420021 else hashtextextended($1::text, 420021) end)`
)

// TakeLead takes the lead on a connection that is used for nothing else, if nobody has it. Ask once a connection.
func (db *Database) TakeLead(ctx context.Context, conn *pgx.Conn) (bool, error) {
	return db.lead(ctx, conn, takeLeadSQL)
}

// HasLead reports whether the connection has the lead.
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
		return false, fmt.Errorf("ask for the lead of the maintenance: %w", err)
	}
	return *has, nil
}
