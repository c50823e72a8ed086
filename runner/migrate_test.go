package runner_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

func TestRunWithoutTables(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Enqueue(t.Context(), rawArgs("k"))
	is.True(err != nil && strings.Contains(err.Error(), `schema "trapeze" has no tables: call migrate.Up`))
	err = r.Run(t.Context())
	is.True(err != nil && strings.Contains(err.Error(), `schema "trapeze" has no tables: call migrate.Up`))
}

// Pods of two releases with the same minor schema version can share the tables. For any other version, Run returns an error that states the
// remedy.
func TestRunOnOtherSchemaVersion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	latest := queryOne[int](t, pool, `select max(version_id)::int from trapeze.migrations`)
	run := func() error {
		return newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed}).Run(t.Context())
	}
	exec(t, pool, `update trapeze.migrations set version_id = $1 where version_id = $2`, latest+1000, latest)
	is.Equal(run().Error(), fmt.Sprintf("start the runner: schema trapeze is at version %d, this program knows %d: the database's schema is newer than this program: use the newer release", latest+1000, latest))
	exec(t, pool, `delete from trapeze.migrations where version_id > $1`, latest)
	before := queryOne[int](t, pool, `select max(version_id)::int from trapeze.migrations`)
	is.Equal(run().Error(), fmt.Sprintf("start the runner: schema trapeze is at version %d of %d: the database's schema is older than this program: run `trapeze migrate up`", before, latest))
	exec(t, pool, `insert into trapeze.migrations (version_id, is_applied) values ($1, true)`, latest+1) // as a newer release of the same minor version would
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
}

// A program that only submits can use the lanes in its options before any pod has run.
func TestOptionLanesAfterMigration(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	o := runner.Options{Lanes: []runner.LaneSetup{{Name: "mail", Slots: new(4), SlotsPerPod: new(2), Kinds: []string{"k"}}}}
	for range 2 { // the second call changes nothing
		is.NoErr(migrate.Up(t.Context(), pool, o))
	}
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("post"))
	is.True(errors.Is(err, runner.ErrUnknownLane))
	is.Equal(get(t, r, enqueue(t, r, rawArgs("k"))).Lane, "mail")
	is.Equal(queryOne[string](t, pool, `select slots || '/' || slots_per_pod from trapeze.lanes where name = 'mail'`), "4/2")

	o.Lanes[0].SlotsPerPod = new(-1)
	err = migrate.Up(t.Context(), pool, o)
	is.True(errors.Is(err, runner.ErrInvalidSetting))
}
