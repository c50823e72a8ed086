package migrate_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A service whose role may not create anything can still call Up at every start, as long as nothing is missing.
func TestMigrateUpWithoutCreateRight(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	owner := pgtest.Connect(t, url)
	role, as := pgtest.Role(t, url)
	modest := pgtest.Connect(t, as)
	o := runner.Options{Lanes: []runner.LaneSetup{{Name: "mail", SlotsPerPod: new(2), Kinds: []string{"k"}}}}
	is.NoErr(migrate.Up(t.Context(), owner, o))
	for _, grant := range []string{"usage on schema trapeze", "select on trapeze.migrations, trapeze.lanes"} {
		_, err := owner.Exec(t.Context(), "grant "+grant+" to "+role)
		is.NoErr(err)
	}
	is.NoErr(migrate.Up(t.Context(), modest, o))

	o.Lanes[0].Name = "post"
	err := migrate.Up(t.Context(), modest, o)
	is.True(err != nil && strings.Contains(err.Error(), "permission denied for table lanes")) // a lane is missing

	_, err = owner.Exec(t.Context(), `delete from trapeze.migrations where version_id = (select max(version_id) from trapeze.migrations)`)
	is.NoErr(err)
	is.True(migrate.Up(t.Context(), modest, runner.Options{}) != nil) // a migration is missing
}

// An administrator creates an empty schema that the role owns. The role can then create the tables in it without permission to create
// schemas.
func TestMigrateIntoOwnedSchema(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	role, as := pgtest.Role(t, url)
	_, err := pgtest.Connect(t, url).Exec(t.Context(), "create schema trapeze authorization "+role)
	is.NoErr(err)
	is.NoErr(migrate.Up(t.Context(), pgtest.Connect(t, as), runner.Options{}))
}
