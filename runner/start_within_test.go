package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Whichever way a job is created, the earliest limit of the job, its kind and its lane applies. A limit of a kind or lane counts from when the job is due.
func TestStartLimitOfEachCreation(t *testing.T) {
	t.Parallel()
	for name, c := range someOf(map[string]struct {
		own, kind, lane, want time.Duration
		template              bool
	}{
		"none":          {},
		"kind":          {kind: 3 * time.Hour, want: 3 * time.Hour},
		"lane":          {lane: 4 * time.Hour, want: 4 * time.Hour},
		"template":      {lane: 4 * time.Hour, want: 4 * time.Hour, template: true},
		"kind and lane": {kind: 3 * time.Hour, lane: 4 * time.Hour, want: 3 * time.Hour},
		"lane and kind": {kind: 3 * time.Hour, lane: 2 * time.Hour, want: 2 * time.Hour},
		"own is less":   {own: time.Hour, kind: 3 * time.Hour, lane: 2 * time.Hour, want: 2 * time.Hour},
		"own is more":   {own: 30 * time.Hour, kind: 3 * time.Hour, want: 3 * time.Hour},
	}, "template", "kind and lane", "lane and kind", "own is less") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			r := newRunner(t, pool, runner.Options{}, map[string]handler{
				"then": returns(func() *runner.Outcome { return runner.Then(rawArgs("k")) }),
				"fan":  returns(func() *runner.Outcome { return runner.FanOut(rawArgs("k"), rawArgs("k")).Join(rawArgs("done")) }),
				"fails": func(context.Context, *raw) (*runner.Outcome, error) {
					return nil, runner.Permanent(errors.New("as planned"))
				},
				"done": succeed,
			})
			var options []runner.HandleOption
			if c.kind > 0 {
				options = append(options, runner.StartWithin(c.kind))
			}
			runner.HandleRaw(r, "k", succeed, options...)
			r.DeclareSchedule("s", "@yearly", rawArgs("k"))
			change := job.LaneChange{Enabled: new(bool), Kinds: &[]string{"k"}} // the lane starts no jobs
			if c.lane > 0 {
				change.StartWithin = job.To(job.Seconds(c.lane))
			}
			lane, set := "closed", "closed"
			if c.template {
				lane, set, change.Kinds = "t/1", "t/*", nil
			}
			_, err := r.Admin("ann").SetLane(t.Context(), set, change)
			is.NoErr(err)
			run(t, r)
			in := runner.Lane(lane)
			db := stdlib.OpenDBFromPool(pool)
			defer func() { _ = db.Close() }()

			// limits returns the limits of the jobs of kind k, counted from when they are due, and deletes these jobs.
			limits := func(n int) (all []time.Duration) {
				t.Helper()
				var found []float64
				pgtest.Wait(t, "the jobs exist", func() bool {
					found = column[float64](t, pool, `select coalesce(extract(epoch from p.start_by - j.created_at), 0)::float8
						from (select id, start_by from trapeze.live union all select id, start_by from trapeze.parked) p join trapeze.jobs j using (id) where j.kind = 'k'`)
					return len(found) == n
				})
				exec(t, pool, `with gone as (delete from trapeze.live where kind = 'k'), parked as (delete from trapeze.parked where kind = 'k')
					delete from trapeze.jobs where kind = 'k' and id not in (select id from trapeze.done)`)
				for _, seconds := range found {
					all = append(all, time.Duration(seconds*float64(time.Second)).Round(time.Minute)) // a created_at is the clock's
				}
				return all
			}
			check := func(what string, n int, want time.Duration) {
				t.Helper()
				for _, got := range limits(n) {
					if got != want {
						t.Errorf("%s: %s, want %s", what, got, want)
					}
				}
			}
			least := func(delay time.Duration) time.Duration {
				switch {
				case c.want == 0:
					return c.own
				case c.own == 0:
					return c.want + delay
				}
				return min(c.own, c.want+delay)
			}
			submissions := [][]runner.EnqueueOption{nil, {runner.Subject("s")}, {runner.Key("a")}, {runner.Delay(20 * time.Minute)}, {runner.NeedsApproval()},
				{runner.Unique("u", runner.WhilePending).Debounce(time.Minute, 20*time.Minute)}}
			for i, more := range submissions {
				delay := time.Duration(0)
				if i == 3 || i == 5 {
					delay = 20 * time.Minute
				}
				more = append(more, in)
				if c.own > 0 {
					more = append(more, runner.StartBy(c.own))
				}
				enqueue(t, r, rawArgs("k"), more...)
				check(fmt.Sprintf("Enqueue %d", i), 1, least(delay))
				exec(t, pool, `delete from trapeze.unique_keys`)
				is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
					_, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"), more...)
					return err
				}))
				check(fmt.Sprintf("EnqueueTx %d", i), 1, least(delay))
				exec(t, pool, `delete from trapeze.unique_keys`)
				_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"), more...)
				is.NoErr(err)
				check(fmt.Sprintf("EnqueueSQL %d", i), 1, least(delay))
				exec(t, pool, `delete from trapeze.unique_keys`)
				if i != 5 {
					_, err = r.EnqueueMany(t.Context(), many("k", 250), more...)
					is.NoErr(err)
					check(fmt.Sprintf("EnqueueMany %d", i), 250, least(delay))
				}
			}
			if c.template {
				return
			}
			enqueue(t, r, rawArgs("then"))
			check("next step", 1, c.want)
			enqueue(t, r, runner.Chain(rawArgs("done"), rawArgs("k")), runner.Subject("s"))
			check("planned step", 1, c.want)
			enqueue(t, r, rawArgs("fan"))
			check("children", 2, c.want)
			_, err = r.Admin("ann").TriggerSchedule(t.Context(), "s", nil)
			is.NoErr(err)
			check("occurrence", 1, c.want)
			enqueue(t, r, rawArgs("fails"), runner.OnFailure(runner.Chain(rawArgs("k"), rawArgs("k"))))
			check("failure step", 1, 0)
			enqueue(t, r, rawArgs("fails"), runner.OnFailure(runner.Chain(rawArgs("done"), rawArgs("k"))))
			check("second failure step", 1, 0)
			id := enqueue(t, r, rawArgs("k"), runner.StartBy(time.Hour))
			_, err = r.Admin("ann").Cancel(t.Context(), id)
			is.NoErr(err)
			_, err = r.Admin("ann").Retry(t.Context(), id, 1)
			is.NoErr(err)
			check("operator's retry", 1, 0)
		})
	}
}

// A change of a lane's limit applies to new jobs. A job that is moved keeps its limit.
func TestChangedStartLimitOfLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	set := func(lane string, c job.LaneChange) {
		t.Helper()
		_, err := r.Admin("ann").SetLane(t.Context(), lane, c)
		is.NoErr(err)
	}
	set("default", job.LaneChange{StartWithin: job.To(job.Seconds(time.Hour))})
	set("other", job.LaneChange{StartWithin: job.To(job.Seconds(time.Minute))})
	first := enqueue(t, r, rawArgs("k"))
	set("default", job.LaneChange{StartWithin: job.NoLimit[job.Seconds]()})
	second := enqueue(t, r, rawArgs("k"))
	set("other", job.LaneChange{Kinds: &[]string{"k"}}) // moves the jobs
	is.Equal(queryOne[bool](t, pool, `select a.start_by > now() + interval '50 min' and a.lane = 'other' and b.start_by is null from trapeze.live a, trapeze.live b where a.id = $1 and b.id = $2`, first, second), true)
}

// A job that waits too long in its lane or for its kind fails, and its failure step runs although the lane has the same limit.
func TestLateJobOfLimitedLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var seen ends
	r := newRunner(t, pool, runner.Options{OnEnd: seen.add}, map[string]handler{"after": succeed})
	runner.HandleRaw(r, "after2", succeed, runner.StartWithin(time.Millisecond))
	_, err := r.Admin("ann").SetLane(t.Context(), "default", job.LaneChange{StartWithin: job.To(job.Seconds(time.Second))})
	is.NoErr(err)
	id := enqueue(t, r, rawArgs("nobody"), runner.AllowUnregistered(), runner.OnFailure(runner.Chain(rawArgs("after"), rawArgs("after2"))))
	exec(t, pool, `update trapeze.live set start_by = now() where id = $1`, id)
	run(t, r)
	pgtest.WaitFor(t, 90*time.Second, "the job expires", func() bool { return len(seen.of(id)) > 0 })
	is.Equal(seen.of(id)[0].Reason, job.ReasonExpired)
	pgtest.Wait(t, "the failure steps end", func() bool {
		return queryOne[int](t, pool, `select count(*) from trapeze.job where kind in ('after', 'after2') and state = 'succeeded'`) == 2
	})
	checkHistory(t, pool, r)
}

func TestInvalidStartWithin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Unconnected(t), runner.Options{}, nil)
	for _, d := range []time.Duration{0, -time.Second, time.Microsecond} {
		wrong := newRunner(t, pgtest.Unconnected(t), runner.Options{}, nil)
		runner.HandleRaw(wrong, "k", succeed, runner.StartWithin(d))
		is.Equal(wrong.Run(t.Context()).Error(), fmt.Sprintf(`invalid request: kind "k": StartWithin(%s), want at least 1ms`, d))
	}
	for _, d := range []time.Duration{0, -time.Second, time.Millisecond, job.MaxLaneAge + time.Second} {
		_, err := r.Admin("ann").SetLane(t.Context(), "default", job.LaneChange{StartWithin: job.To(job.Seconds(d))})
		is.True(errors.Is(err, job.ErrInvalidSetting))
		is.True(strings.Contains(err.Error(), "start_within_s"))
	}
}
