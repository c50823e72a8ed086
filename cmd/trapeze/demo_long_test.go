//go:build long

package main

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestTheDemoOnYourDatabaseLeavesNothingBehindThere(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	checkDemo(t, trapeze(t, []string{"DATABASE_URL=" + url}, "demo", "--json"))
	var left, connected int
	pool := pgtest.Connect(t, url)
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'trapeze%'`).Scan(&left))
	is.Equal(left, 0) // the demo has dropped its schemas
	pgtest.Wait(t, "the demo has closed all connections", func() bool {
		err := pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid()`).Scan(&connected)
		return err == nil && connected == 0
	})
}
