package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Every way to submit a job makes its lane, and all pods run its jobs without waiting for a poll or a heartbeat.
func TestLanesMadeOnFirstUse(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{PollInterval: seldom, HeartbeatInterval: seldom / 4, LeaseDuration: seldom}
	steps := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		switch j.Lane() {
		case "tenant/step":
			return runner.Then(rawArgs("k"), runner.Lane("tenant/next")), nil
		case "tenant/fan":
			return runner.FanOut(runner.With(rawArgs("k"), runner.Lane("tenant/child"))).Join(rawArgs("k"), runner.Lane("tenant/join")), nil
		case "tenant/fails":
			return nil, runner.Permanent(errors.New("as planned"))
		}
		return nil, nil
	}
	r := start(t, pool, o, map[string]handler{"k": steps, "undo": succeed})
	_, err := r.Admin("ann").SetLane(t.Context(), "tenant/*", job.LaneChange{Slots: job.To(2)})
	is.NoErr(err)
	_, err = r.Admin("ann").SetLane(t.Context(), "tenant/vip/*", job.LaneChange{Slots: job.To(9)})
	is.NoErr(err)
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("other/1"))
	is.True(errors.Is(err, job.ErrUnknownLane))
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("tenant/*"))
	is.True(errors.Is(err, job.ErrUnknownLane))
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("tenant/"))
	is.True(errors.Is(err, job.ErrUnknownLane))

	var ids []int64
	submit := func(args job.Args, options ...runner.EnqueueOption) {
		t.Helper()
		s, err := r.Enqueue(t.Context(), args, options...)
		is.NoErr(err)
		ids = append(ids, s.ID)
	}
	submit(rawArgs("k"), runner.Lane("tenant/plain"))
	submit(rawArgs("k"), runner.Lane("tenant/vip/1"), runner.Subject("s"), runner.Key("a"), runner.Unique("u", runner.WhileActive))
	submit(rawArgs("k"), runner.Lane("tenant/step"))
	submit(rawArgs("k"), runner.Lane("tenant/fan"))
	submit(runner.Chain(rawArgs("k"), runner.With(rawArgs("k"), runner.Lane("tenant/link"))), runner.Lane("tenant/chain"))
	many, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("k"), rawArgs("k")}, runner.Lane("tenant/many"))
	is.NoErr(err)
	ids = append(ids, many...)
	is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		s, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"), runner.Lane("tenant/tx"))
		ids = append(ids, s.ID)
		return err
	}))
	ids = append(ids, column[int64](t, pool, `select id from trapeze.enqueue(kind => 'k', lane => 'tenant/sql')`)...)
	quiet(t, pool)
	is.Equal(len(column[int64](t, pool, `select id from trapeze.done where id = any($1) and state = 'succeeded'`, ids)), len(ids))
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("tenant/fails"), runner.OnFailure(runner.With(rawArgs("undo"), runner.Lane("tenant/undo"))))
	is.NoErr(err)
	quiet(t, pool)
	lanes := column[string](t, pool, `select name || ' ' || slots || ' ' || template from trapeze.lanes where template is not null order by name collate "C"`)
	is.Equal(lanes, []string{"tenant/chain 2 tenant/*", "tenant/child 2 tenant/*", "tenant/fails 2 tenant/*", "tenant/fan 2 tenant/*", "tenant/join 2 tenant/*", "tenant/link 2 tenant/*", "tenant/many 2 tenant/*",
		"tenant/next 2 tenant/*", "tenant/plain 2 tenant/*", "tenant/sql 2 tenant/*", "tenant/step 2 tenant/*", "tenant/tx 2 tenant/*", "tenant/undo 2 tenant/*", "tenant/vip/1 9 tenant/vip/*"})
}

// A lane that is still to be made takes part in every option of a submission.
func TestUnmadeLanesWithOtherOptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	ran := make(chan string, 10)
	release := make(chan struct{})
	r := start(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{
		"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			ran <- j.Lane() + string(j.Args.JSON)
			return nil, nil
		},
		"fan": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("slow"), runner.Lane("default"))).Join(rawArgs("k", "7")), nil
		},
		"slow": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil, nil
		},
	})
	_, err := r.Admin("ann").SetLane(t.Context(), "t/*", job.LaneChange{Slots: job.To(2)})
	is.NoErr(err)
	unique := runner.Unique("u", runner.WhilePending)
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error { // no pod can make the lane in between
		first, err := r.EnqueueTx(t.Context(), tx, rawArgs("k", "1"), runner.Lane("t/replace"), unique.Replace())
		is.NoErr(err)
		second, err := r.EnqueueTx(t.Context(), tx, rawArgs("k", "2"), runner.Lane("t/other"), unique.Replace())
		is.NoErr(err)
		is.True(second.Replaced && second.ID == first.ID) // the job keeps its lane
		return nil
	}))
	is.Equal(<-ran, "t/replace2")
	_, err = r.Enqueue(t.Context(), rawArgs("k", "3"), runner.Lane("t/throttle"), runner.Unique("v", runner.WhilePending).Throttle(time.Hour))
	is.NoErr(err)
	is.Equal(<-ran, "t/throttle3")
	later, err := r.Enqueue(t.Context(), rawArgs("k", "4"), runner.Lane("t/throttled"), runner.Unique("v", runner.WhilePending).Throttle(time.Hour))
	is.NoErr(err)
	is.True(get(t, r, later.ID).RunAfter.After(time.Now().Add(50 * time.Minute))) // a lane to be made does not shorten the wait
	_, err = pool.Exec(t.Context(), `select trapeze.enqueue(kind => 'k', lane => 't/sql', args => '5', chain => '[{"kind":"k","lane":"t/sql2","args":6}]')`)
	is.NoErr(err)
	is.Equal(<-ran, "t/sql5")
	is.Equal(<-ran, "t/sql26")

	fan, err := r.Enqueue(t.Context(), rawArgs("fan"), runner.Lane("t/fan"))
	is.NoErr(err)
	pgtest.Wait(t, "the job waits for its child", func() bool { return get(t, r, fan.ID).State == job.Waiting })
	_, err = pool.Exec(t.Context(), `delete from trapeze.lanes where name = 't/fan'`) // as maintenance does
	is.NoErr(err)
	_, err = r.Admin("ann").SetLane(t.Context(), "other", job.LaneChange{})
	is.NoErr(err)
	enqueue(t, r, rawArgs("k", "8"), runner.Lane("other"))
	is.Equal(<-ran, "other8") // the pod has read the lanes since
	close(release)
	is.Equal(<-ran, "t/fan7") // the join makes its parent's lane again, and does not wait for maintenance
	is.Equal(column[int64](t, pool, `select count(*) from trapeze.job_events e join trapeze.jobs j on j.id = e.job where j.parent_id = $1 and e.event = 'job.promoted'`, fan.ID), []int64{1})

	change := every("@every 1s")
	change.Lane = new("t/nightly")
	_, err = r.Admin("ann").SetSchedule(t.Context(), "often", change)
	is.NoErr(err)
	is.Equal(<-ran, "t/nightly{}")
	change.Lane = new("u/nightly")
	_, err = r.Admin("ann").SetSchedule(t.Context(), "often", change)
	is.True(errors.Is(err, job.ErrUnknownLane) && strings.Contains(err.Error(), `"u/nightly"`))
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("tt/1"))
	is.True(errors.Is(err, job.ErrUnknownLane) && strings.Contains(err.Error(), `submit k to lane "tt/1"`))
}

// A rate of a template limits the starts of each tenant.
func TestRateOfEachTenant(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	limitTenants(t, r, "", job.LaneChange{}, job.KeyLimitChange{Rate: job.To(1), Per: new(job.Seconds(time.Hour)), Burst: new(2)})
	for range 3 {
		for tenant := range 4 {
			enqueue(t, r, rawArgs("k"), runner.Lane(fmt.Sprint("tenant/", tenant)))
		}
	}
	counts := func(table string) []string {
		return column[string](t, pool, `select lane || ' ' || count(*) from trapeze.`+table+` group by lane order by lane`)
	}
	pgtest.Wait(t, "two jobs of each tenant have ended", func() bool {
		return slices.Equal(counts("done"), []string{"tenant/0 2", "tenant/1 2", "tenant/2 2", "tenant/3 2"})
	})
	is.Equal(counts("live"), []string{"tenant/0 1", "tenant/1 1", "tenant/2 1", "tenant/3 1"})
}

// With a lane per tenant and a key per region, there are two levels of limits: two jobs of each tenant run at a time, and one of each of its regions.
func TestLimitsOfTenantAndRegion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	tenants := map[string]*slotUse{"tenant/1": newSlotUse(map[string]int{"all": 2}), "tenant/2": newSlotUse(map[string]int{"all": 2})}
	regions := newSlotUse(nil)
	r := start(t, pool, runner.Options{Slots: 10}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		regions.change(j.Lane()+" "+j.Key(), 1)
		defer regions.change(j.Lane()+" "+j.Key(), -1)
		return tenants[j.Lane()].run(ctx, j)
	}})
	limitTenants(t, r, "*", job.LaneChange{Slots: job.To(2)}, job.KeyLimitChange{Slots: job.To(1)})
	for range 3 {
		for tenant := range tenants {
			for _, region := range []string{"eu", "us", "asia"} {
				enqueue(t, r, rawArgs("k"), runner.Lane(tenant), runner.Key(region))
			}
		}
	}
	quiet(t, pool)
	for tenant, use := range tenants {
		is.Equal(use.most["all"], 2)
		for _, region := range []string{"eu", "us", "asia"} {
			is.Equal(regions.most[tenant+" "+region], 1)
		}
	}
	checkHistory(t, pool, r)
}

// limitTenants makes the template tenant/* with a limit for a key: an empty one stands for the lane.
func limitTenants(t *testing.T, r *runner.Runner, key string, lane job.LaneChange, limit job.KeyLimitChange) {
	t.Helper()
	is := is.New(t)
	_, err := r.Admin("ann").SetLane(t.Context(), "tenant/*", lane)
	is.NoErr(err)
	limit.LimitOf = job.LimitOf{Scope: job.LaneScope, Name: "tenant/*", Key: key}
	_, err = r.Admin("ann").SetLimit(t.Context(), limit)
	is.NoErr(err)
}
