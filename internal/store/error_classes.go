package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// retryable reports the two errors after which the whole statement should be repeated, and nothing was done: 40001
// serialization failure and 40P01 deadlock.
func retryable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}

// outdated reports that a prepared statement is no longer valid: its result has other columns since a migration (0A000), or
// it was deallocated (26000). Nothing was done.
func outdated(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "0A000" || pg.Code == "26000")
}

// Unknown reports whether err leaves open if its statement was committed: the connection broke, or a deadline passed, after
// something had been sent. An error that PostgreSQL reported means that nothing was committed.
func Unknown(err error) bool {
	// pgx 5.12 reports a lost reply to a simple query or a batch, and so to every commit, as "conn closed", which claims to
	// be safe to retry.
	if err == nil || pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		// A terminated backend may have committed before (57P01 to 57P03 arrive instead of the reply).
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08") || pg.Code == "XX000"
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	return broken(err) || pgconn.Timeout(err) || errors.Is(err, context.Canceled)
}

// unsent reports that a connection had ended before the statement, or the commit, could be sent on it: nothing was done, and
// it may be sent on another connection at once.
func unsent(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || err == nil || Unknown(err) {
		return false
	}
	return pgconn.SafeToRetry(err) && broken(err)
}

// Refused reports whether PostgreSQL rejected a statement because of its contents: a value that cannot be stored, is too
// large or too deep, or violates a constraint. Such a statement fails again when it is repeated.
func Refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !dayMissing(pg) &&
		(strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || strings.HasPrefix(pg.Code, "54"))
}

// dayMissing reports whether a row found no partition for its day, which PostgreSQL reports as a check violation without a
// constraint's name. The cause is the server's state, which the maintenance repairs.
func dayMissing(pg *pgconn.PgError) bool { return pg.Code == "23514" && pg.ConstraintName == "" }

// Class returns the first two characters of the SQLSTATE in err, "conn" for a broken or refused connection, or empty.
func Class(err error) string {
	if err == nil {
		return ""
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && len(pg.Code) == 5 {
		return pg.Code[:2]
	}
	if Unknown(err) || Transient(err) {
		return "conn"
	}
	return ""
}

// ErrCutOff is the error of reads on a pod whose heartbeats have failed for longer than it may trust its lease.
var ErrCutOff = errors.New("this pod has lost the database")

// Transient reports whether the cause of err is the connection or the server's state, not the statement: worth another try.
func Transient(err error) bool {
	if err == nil {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code[:2] {
		case "08", "53", "57", "58", "40":
			return true
		}
		// Lock and idle timeouts; a standby after a failover.
		return pg.Code == "55P03" || pg.Code == "25P03" || pg.Code == readOnly || pg.Code == "XX000" || dayMissing(pg)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || errors.Is(err, ErrCutOff) {
		return true
	}
	if _, ok := errors.AsType[*unreachable](err); ok {
		return true
	}
	// Migrations use database/sql, which reports a lost connection as a bad one.
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err) || broken(err) || errors.Is(err, driver.ErrBadConn)
}

// broken reports whether err means that a connection ended during a statement.
func broken(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, pgconn.ErrConnClosed) {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok
}
