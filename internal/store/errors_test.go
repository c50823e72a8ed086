package store

import (
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

func TestADatabaseThatRefusesConnectionsIsWorthAnotherTry(t *testing.T) {
	is := is.New(t)
	_, err := pgx.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	is.True(err != nil)
	is.True(Transient(err))
	is.True(!Unknown(err)) // nothing was sent
	is.True(!Refused(err))
	is.Equal(Class(err), "conn")
}

func TestAConnectionThatBreaksUnderAMigrationIsWorthAnotherTry(t *testing.T) {
	is := is.New(t)
	err := fmt.Errorf("migrate schema trapeze: %w", driver.ErrBadConn)
	is.True(Transient(err))
	is.True(!Unknown(err)) // what says so was not sent
}
