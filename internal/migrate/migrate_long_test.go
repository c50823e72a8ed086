//go:build long

package migrate_test

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/schema"
)

func TestDownThenUpGivesTheSameSchema(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	before := shape(t, pool, "trapeze")
	for to := schema.Latest() - 1; to >= 0; to-- {
		is.NoErr(migrate.Down(t.Context(), url, "trapeze", to))
		want := schema.ErrTooOld
		if to == 0 {
			want = schema.ErrNoTables
		}
		is.True(errors.Is(schema.Check(t.Context(), pool, "trapeze"), want))
	}
	is.Equal(tables(t, pool, "trapeze"), 0) // only the migrations table is left
	status, err := migrate.Status(t.Context(), url, "trapeze")
	is.NoErr(err)
	is.Equal(len(status), known(t))
	for _, m := range status {
		is.True(m.AppliedAt.IsZero())
	}
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	is.Equal(shape(t, pool, "trapeze"), before)
}
