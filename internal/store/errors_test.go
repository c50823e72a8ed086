package store_test

import (
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

func TestTransientConnectionRefusal(t *testing.T) {
	is := is.New(t)
	_, err := pgx.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	is.True(err != nil)
	is.True(store.Transient(err))
	is.True(!store.Unknown(err)) // nothing was sent
	is.True(!store.Refused(err))
	is.Equal(store.Class(err), "conn")
}

func TestTransientMigrationConnectionLoss(t *testing.T) {
	is := is.New(t)
	err := fmt.Errorf("migrate schema trapeze: %w", driver.ErrBadConn)
	is.True(store.Transient(err))
	is.True(!store.Unknown(err)) // this error is returned only if nothing was sent
}

// PostgreSQL uses one SQLSTATE for a full NOTIFY queue, which is no fault of the job, and for values that are too complex.
func TestFullNotifyQueueRetry(t *testing.T) {
	is := is.New(t)
	full := &pgconn.PgError{Code: "54000", File: "async.c", Message: "too many notifications in the NOTIFY queue"}
	is.True(store.Transient(full))
	is.True(!store.Refused(full))
	is.True(store.Refused(&pgconn.PgError{Code: "54000", File: "jsonb_util.c"}))
}

// PostgreSQL 17 closes the connection of a transaction that exceeds transaction_timeout, possibly after its commit.
func TestTransactionTimeoutAsLostConnection(t *testing.T) {
	is := is.New(t)
	err := &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "25P04", Message: "terminating connection due to transaction timeout"}
	is.True(store.Transient(err))
	is.True(store.Unknown(err))
	is.Equal(store.Class(err), "25")
}

func TestPoolerWithoutServerConnection(t *testing.T) {
	is := is.New(t)
	err := &pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "query_wait_timeout"}
	is.True(store.Transient(err))
	is.True(!store.Unknown(err))
	is.True(store.Unknown(&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "server conn crashed?"}))
}
