package runner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

// The migrations create the lane default, so a declaration of it must change a lane that exists, but never what an operator has set.
func TestTheDeclaredDefaultLaneApplies(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	slots := func() string {
		return queryOne[string](t, pool, `select concat_ws(' ', slots, slots_per_pod, (select lane from trapeze.lane_kinds where kind = 'k'),
			(select count(*) from trapeze.audit where target = 'lane default')) from trapeze.lanes where name = 'default'`)
	}
	declare := func(n int) {
		o := runner.Options{Lanes: []runner.LaneSetup{{Name: job.DefaultLane, Slots: &n, SlotsPerPod: &n, Kinds: []string{"k"}}}}
		is.NoErr(migrate.Up(t.Context(), pool, o))
	}
	declare(16)
	is.Equal(slots(), "16 16 default 1")
	declare(8)
	is.Equal(slots(), "16 16 default 1") // from then on, the database is authoritative
	admin := start(t, pool, runner.Options{}, nil).Admin("operator")
	_, err := admin.SetLane(t.Context(), job.DefaultLane, job.LaneChange{Slots: job.Limit[int]{Set: true}, SlotsPerPod: job.Limit[int]{Set: true}})
	is.NoErr(err)
	declare(4)
	is.Equal(slots(), "default 2") // an operator has removed the limits
}

func TestDeclaredLaneMissingInDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	limit := 1
	lanes := []runner.LaneSetup{{Name: "mail", Slots: &limit, Kinds: []string{"letter"}}}
	r := newRunner(t, pool, runner.Options{Lanes: lanes}, map[string]handler{"letter": succeed, "other": succeed})
	_, err := r.Enqueue(t.Context(), rawArgs("letter"))
	is.True(errors.Is(err, job.ErrUnknownLane))
	is.True(strings.Contains(err.Error(), "migrate.Up"))
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 0)
	_, err = r.Enqueue(t.Context(), rawArgs("other"))
	is.NoErr(err)
	is.NoErr(migrate.Up(t.Context(), pool, runner.Options{Lanes: lanes}))
	made, err := r.Enqueue(t.Context(), rawArgs("letter"))
	is.NoErr(err)
	is.Equal(get(t, r, made.ID).Lane, "mail")
}

func TestDeletedDefaultLaneIsCreated(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `delete from trapeze.lanes`)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
}
