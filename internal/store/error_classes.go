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

// retryable reports the two errors after which PostgreSQL asks for the whole statement again, with nothing done:
// 40001 serialization failure and 40P01 deadlock.
func retryable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}

// outdated reports that a prepared statement is not what it was: its result has other columns since a migration (0A000), or
// somebody deallocated it (26000). Nothing was done.
func outdated(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "0A000" || pg.Code == "26000")
}

// Unknown reports whether err leaves open if its statement was committed: the connection broke, or a deadline passed,
// after something had been sent. An error that PostgreSQL itself reported means that nothing was.
func Unknown(err error) bool {
	// pgx 5.12 reports a reply that was lost to a simple query or a batch, and so to every commit, as "conn closed", which
	// says of itself that it is safe to retry.
	if err == nil || pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		// A backend that is terminated may have committed before it said so (57P01 to 57P03 arrive instead of the reply).
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08") || pg.Code == "XX000"
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	return broken(err) || pgconn.Timeout(err) || errors.Is(err, context.Canceled)
}

// unsent reports that a connection had ended before the statement, or the commit, could be sent on it: nothing was done, and
// another connection may do it at once.
func unsent(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || err == nil || Unknown(err) {
		return false
	}
	return pgconn.SafeToRetry(err) && broken(err)
}

// Refused reports whether PostgreSQL refused a statement because of what is in it: a value that cannot be stored, is too
// large or too deep, or a constraint that is violated. Such a statement fails again when it is sent again.
func Refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !dayMissing(pg) &&
		(strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || strings.HasPrefix(pg.Code, "54"))
}

// dayMissing reports whether a row found no partition for its day, which PostgreSQL calls a check violation without the
// name of a constraint. It is the server's state, and maintenance mends it.
func dayMissing(pg *pgconn.PgError) bool { return pg.Code == "23514" && pg.ConstraintName == "" }

// Class is the first two characters of the SQLSTATE in err, "conn" for a broken or refused connection, or empty.
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

// ErrCutOff is returned for reads on a pod whose heartbeats have failed for longer than it may trust its lease.
var ErrCutOff = errors.New("this pod has lost the database")

// Transient reports whether err is of the connection or of the server's state, not of the statement: worth another try.
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
	// Migrations go through database/sql, which calls a connection that is gone a bad one.
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err) || broken(err) || errors.Is(err, driver.ErrBadConn)
}

// broken reports whether err is that of a connection that ended under a statement.
func broken(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, pgconn.ErrConnClosed) {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok
}
