package runner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestDeclaredLaneOverriddenInDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('known', 7)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('c', 'known')`)
	two := 2
	o := runner.Options{Slots: 4, Lanes: []runner.LaneSetup{
		{Name: "interactive", Slots: &two, Kinds: []string{"a", "c"}}, {Name: "known", Slots: &two, Kinds: []string{"b"}},
	}}
	pods := startPods(t, url, 3, o, map[string]handler{"a": succeed, "b": succeed, "c": succeed})
	lanes := func() string {
		return queryOne[string](t, pool, `select string_agg(l.name || '=' || coalesce(l.slots::text, '') || ':' ||
			(select coalesce(string_agg(kind, '+' order by kind), '') from trapeze.lane_kinds k where k.lane = l.name), ',' order by l.name) from trapeze.lanes l`)
	}
	is.Equal(lanes(), "default=:,interactive=2:a,known=7:c") // the database's settings apply to the lane of c and the slots of known
	is.Equal(audited(t, pods[0]), []string{"system lane.set lane interactive"})
	is.Equal(get(t, pods[1], enqueue(t, pods[1], rawArgs("a"))).Lane, "interactive")

	_, err := pods[0].Admin("ann").SetLane(t.Context(), "interactive", job.LaneChange{Slots: job.To(3)})
	is.NoErr(err)
	start(t, pgtest.Connect(t, url), o, map[string]handler{"a": succeed, "b": succeed, "c": succeed})
	is.Equal(lanes(), "default=:,interactive=3:a,known=7:c") // a later start changes nothing
	quiet(t, pool)
}

func TestKindInTwoLanes(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Unconnected(t)
	_, err := runner.New(pool, runner.Options{Lanes: []runner.LaneSetup{
		{Name: "one", Kinds: []string{"a"}}, {Name: "two", Kinds: []string{"b", "a"}}, {Name: "../three"}}})
	is.True(errors.Is(err, job.ErrKindInTwoLanes))
	is.True(strings.Contains(err.Error(), `kind "a" is in lanes "one" and "two"`))
	is.True(errors.Is(err, job.ErrInvalidSetting)) // all mistakes are reported together
}
