package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/job"
)

// retryable reports whether PostgreSQL rolled the whole statement back with an error after which it should be retried: 40001 (serialization
// failure) or 40P01 (deadlock).
func retryable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}

// outdated reports whether a prepared statement is no longer valid. Either a migration has changed its result columns (0A000), or it was
// deallocated (26000). In either case, the statement was not executed.
func outdated(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "0A000" || pg.Code == "26000")
}

// lockTimeout is the SQLSTATE of a statement that exceeds lock_timeout.
const lockTimeout = "55P03"

// txTimeout is the SQLSTATE with which PostgreSQL 17 and later close a connection whose transaction exceeds transaction_timeout.
const txTimeout = "25P04"

// Unknown reports whether err leaves open whether the statement was committed, because the connection broke or the deadline passed after
// something had been sent. If PostgreSQL reported the error, nothing was committed.
func Unknown(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || Undone(err) {
		return false
	}
	// pgx 5.12 reports "conn closed" when it loses the reply to a simple query or a batch, which includes every commit. It wrongly marks
	// that error as safe to retry.
	if err == nil || pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if pg.Message == poolerFull {
			return false
		}
		// A terminated backend may have committed first; 57P01 to 57P03 then arrive instead of the reply.
		// The same is true of transaction_timeout.
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08") || pg.Code == "XX000" || pg.Code == txTimeout
	}
	return broken(err) || pgconn.Timeout(err) || errors.Is(err, context.Canceled)
}

// poolerFull is pgbouncer's message to a client that it closes after query_wait_timeout, while it has no connection to the server for the
// client's statement. The SQLSTATE is that of any violation of the protocol.
const poolerFull = "query_wait_timeout"

// undone reports that a statement had no effect, because it was not sent, or because its transaction was not committed.
type undone struct{ err error }

func (u *undone) Error() string { return "the statement had no effect: " + u.err.Error() }
func (u *undone) Unwrap() error { return u.err }

// Undone reports whether err states that the statement had no effect, although its connection was lost or the deadline passed.
func Undone(err error) bool {
	_, ok := errors.AsType[*undone](err)
	return ok
}

// hadNoEffect returns the error of a statement that had no effect. [Unknown] is false for it.
func hadNoEffect(err error) error {
	if !Unknown(err) {
		return err
	}
	return &undone{err}
}

// broke reports whether a statement that had no effect failed because its connection broke, so it can be sent again immediately.
func broke(ctx context.Context, err error) bool {
	return Undone(err) && !pgconn.Timeout(err) && ctx.Err() == nil
}

// unsent reports whether a connection ended before the statement, or the commit, could be sent on it. In that case nothing was executed, so
// the statement can be sent on another connection immediately.
func unsent(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || err == nil || Unknown(err) {
		return false
	}
	return pgconn.SafeToRetry(err) && broken(err)
}

// Refused reports whether PostgreSQL rejected a statement because of its data: a value cannot be stored, is too large or too deeply nested,
// or violates a constraint. Repeating the statement would fail again.
func Refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !dayMissing(pg) && !notifyFull(pg) &&
		(strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || strings.HasPrefix(pg.Code, "54"))
}

// Untranslatable reports whether PostgreSQL rejected a text because the database's encoding lacks one of its characters.
func Untranslatable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "22P05" || pg.Code == "22021")
}

// ASCII replaces all other characters by escape sequences, so that every database can store the text. It truncates the text to limit bytes.
func ASCII(s string, limit int) string {
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return job.Storable(b.String(), limit)
}

// dayMissing reports whether there was no partition for a row's day, which PostgreSQL reports as a check violation without a constraint
// name. Upkeep creates the missing partition, so a later attempt can succeed.
func dayMissing(pg *pgconn.PgError) bool { return pg.Code == "23514" && pg.ConstraintName == "" }

// notifyFull reports whether a commit failed because PostgreSQL's NOTIFY queue is full. The SQLSTATE is that of a value that is too complex, so
// only the source file distinguishes them. A session that has been idle in a transaction after LISTEN keeps the queue from shrinking.
func notifyFull(pg *pgconn.PgError) bool { return pg.Code == "54000" && pg.File == "async.c" }

// LockTimeout reports whether PostgreSQL ended a statement that had waited too long for a lock. The statement had no effect.
func LockTimeout(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == lockTimeout
}

// Denied returns PostgreSQL's message if the database role lacks a permission, or an empty string.
func Denied(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" {
		return pg.Message
	}
	return ""
}

// GrantRemedy is the remedy if a database role lacks a permission.
const GrantRemedy = "grant the pod's database role the permissions listed in docs/grants.md, as the owner of the tables"

// Class returns the first two characters of the SQLSTATE in err, "conn" for a broken or refused connection, or an empty string.
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

// ErrCutOff is returned for reads on a pod whose heartbeats have been failing for so long that it can no longer trust its lease.
var ErrCutOff = errors.New("this pod has lost its connection to the database")

// Transient reports whether err was caused by the connection or the server's state, not by the statement, so that another attempt may
// succeed.
func Transient(err error) bool {
	if err == nil {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code[:2] {
		case "08", "53", "57", "58", "40":
			return true
		}
		// These codes report a lock timeout, an idle timeout, transaction_timeout, a write to a standby after a failover, or a full NOTIFY queue.
		return pg.Code == lockTimeout || pg.Code == "25P03" || pg.Code == txTimeout || pg.Code == readOnly || pg.Code == "XX000" || dayMissing(pg) ||
			notifyFull(pg)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || Undone(err) || errors.Is(err, ErrCutOff) || errors.Is(err, errDropped) {
		return true
	}
	// Migrations use database/sql, which reports a lost connection as driver.ErrBadConn.
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
