package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestKindMoveWithWaitingJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{Slots: 1}, map[string]handler{"blocks": waitOn(wait), "a": succeed, "b": succeed})
	enqueueStarted(t, r, rawArgs("blocks"))
	due := enqueue(t, r, rawArgs("a"), runner.Priority(50))
	later := enqueue(t, r, rawArgs("a"), runner.Delay(time.Hour))
	asks := enqueue(t, r, rawArgs("a"), runner.NeedsApproval())
	stays := enqueue(t, r, rawArgs("b"))
	lane := func(id int64) string { return get(t, r, id).Lane }

	kinds := []string{"a"}
	dry, err := r.Admin("ann").SetLane(t.Context(), "careful", job.LaneChange{Kinds: &kinds, Slots: job.To(2), DryRun: true})
	is.NoErr(err)
	is.True(dry.Created && dry.DryRun)
	is.Equal(dry.Moved, 3) // number of jobs that would move
	is.Equal(dry.Changed, []string{"slots", "kinds"})
	is.Equal(lane(due), "default") // no job was moved
	is.Equal(len(audited(t, r)), 0)

	done, err := r.Admin("ann").SetLane(t.Context(), "careful", job.LaneChange{Kinds: &kinds, Slots: job.To(2)})
	is.NoErr(err)
	is.Equal(done.Moved, 3)
	for _, id := range []int64{due, later, asks} {
		is.Equal(lane(id), "careful")
		is.Equal(eventsOf(t, r, id)[1], "job.moved")
	}
	is.Equal(get(t, r, due).Priority, 50)
	is.Equal(lane(stays), "default")
	pgtest.Wait(t, "new jobs go to the lane of their kind", func() bool { return lane(enqueue(t, r, rawArgs("a"))) == "careful" })
	is.Equal(queryOne[string](t, pool, `select lane from trapeze.lane_kinds where kind = 'a'`), "careful")

	none := []string{} // removes the lane's kinds, which moves them back to the default lane
	done, err = r.Admin("ann").SetLane(t.Context(), "careful", job.LaneChange{Kinds: &none})
	is.NoErr(err)
	is.True(done.Moved >= 3)
	is.Equal(lane(asks), "default")
	is.NoErr(r.Admin("ann").Approve(t.Context(), asks))
	_, err = r.Admin("ann").Cancel(t.Context(), later)
	is.NoErr(err)
	open()
	quiet(t, pool)
	is.Equal(get(t, r, asks).State, job.Succeeded)
	checkHistory(t, pool, r)
}

func TestDeleteLaneWithJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, drained) values ('old', false), ('new', false), ('empty', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('a', 'old'), ('x', 'empty')`)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{Slots: 1}, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if string(j.Args.JSON) == "1" && j.Crashes() == 0 {
			return waitOn(wait)(ctx, j)
		}
		return nil, nil
	}})
	runs := enqueueStarted(t, r, rawArgs("a", "1"))
	due, later := enqueue(t, r, rawArgs("a", "2")), enqueue(t, r, rawArgs("a", "3"), runner.Delay(time.Hour))
	del := func(name, to string) error {
		_, err := r.Admin("ann").DeleteLane(t.Context(), name, to, false)
		return err
	}

	is.True(errors.Is(del("old", ""), job.ErrLaneNotEmpty))
	is.True(errors.Is(del("old", "nowhere"), job.ErrUnknownLane))
	is.True(errors.Is(del("nowhere", "new"), job.ErrUnknownLane))
	is.True(errors.Is(del("default", "new"), job.ErrInvalidSetting))
	is.Equal(get(t, r, due).Lane, "old") // a rejected command moves no jobs
	dry, err := r.Admin("ann").DeleteLane(t.Context(), "old", "new", true)
	is.NoErr(err)
	is.Equal([]int{dry.Running, dry.Waiting, dry.Moved}, []int{1, 1, 2})
	is.Equal(len(audited(t, r)), 0)

	done, err := r.Admin("ann").DeleteLane(t.Context(), "old", "new", false)
	is.NoErr(err)
	is.Equal([]int{done.Running, done.Moved}, []int{1, 2})
	is.Equal([]string{get(t, r, due).Lane, get(t, r, later).Lane, get(t, r, runs).Lane}, []string{"new", "new", "old"}) // the running job stays in its lane
	is.Equal(queryOne[string](t, pool, `select lane from trapeze.lane_kinds where kind = 'a'`), "new")
	is.NoErr(del("empty", ""))
	is.Equal(queryOne[string](t, pool, `select lane from trapeze.lane_kinds where kind = 'x'`), "default") // the deleted lane's kinds move to the default lane
	is.Equal(audited(t, r), []string{"ann lane.delete lane old", "ann lane.delete lane empty"})
	open()
	is.Equal(waitEnded(t, r, runs).State, job.Succeeded)
	is.Equal(waitEnded(t, r, due).State, job.Succeeded)
	checkHistory(t, pool, r)
}

func TestUncommittedJobOfDeletedLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name) values ('old'), ('careful')`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('b', 'careful')`)
	r := start(t, pool, runner.Options{}, map[string]handler{"a": succeed, "b": succeed})
	var ids []int64
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, kind := range []string{"a", "b"} {
		made, err := r.EnqueueTx(t.Context(), tx, rawArgs(kind), runner.Lane("old"))
		is.NoErr(err)
		ids = append(ids, made.ID)
	}
	_, err = r.Admin("ann").DeleteLane(t.Context(), "old", "", false) // the uncommitted jobs are not visible, so the lane counts as empty
	is.NoErr(err)
	pgtest.Wait(t, "the pod has applied the change", func() bool {
		_, err := r.Enqueue(t.Context(), rawArgs("a"), runner.Lane("old"), runner.Delay(time.Hour))
		return errors.Is(err, job.ErrUnknownLane)
	})
	is.NoErr(tx.Commit(t.Context()))
	for i, lane := range []string{"default", "careful"} {
		is.Equal(waitEnded(t, r, ids[i]).State, job.Succeeded)
		is.Equal(get(t, r, ids[i]).Lane, lane) // the job ran in its kind's lane
	}
	checkHistory(t, pool, r)
}

func TestInvalidLaneSettings(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, nil)
	twice := []string{"a", "a"}
	for name, c := range map[string]struct {
		lane   string
		change job.LaneChange
		err    error
	}{
		"slots below zero":      {"default", job.LaneChange{Slots: job.To(-1)}, job.ErrInvalidSetting},
		"a billion slots":       {"default", job.LaneChange{SlotsPerPod: job.To(1_000_000_000)}, job.ErrInvalidSetting},
		"a negative age":        {"default", job.LaneChange{MaxAge: job.To(job.Seconds(-time.Second))}, job.ErrInvalidSetting},
		"half a second":         {"default", job.LaneChange{MaxAge: job.To(job.Seconds(time.Second / 2))}, job.ErrInvalidSetting},
		"a negative limit":      {"default", job.LaneChange{InactivityTimeout: job.To(job.Seconds(-time.Second))}, job.ErrInvalidSetting},
		"a kind twice":          {"default", job.LaneChange{Kinds: &twice}, job.ErrInvalidSetting},
		"an empty name":         {"", job.LaneChange{}, job.ErrInvalidSetting},
		"a path":                {"../x", job.LaneChange{}, job.ErrInvalidSetting},
		"two lines":             {"a\nb", job.LaneChange{}, job.ErrInvalidSetting},
		"one that is not there": {"other", job.LaneChange{Existing: true}, job.ErrUnknownLane},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := r.Admin("ann").SetLane(t.Context(), c.lane, c.change)
			is.True(errors.Is(err, c.err))
			is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.lanes`), 1)
			is.Equal(len(audited(t, r)), 0)
		})
	}
	exec(t, pool, `insert into trapeze.lanes (name) values ('a lane of old')`)
	_, err := r.Admin("ann").SetLane(t.Context(), "a lane of old", job.LaneChange{Slots: job.To(1)})
	is.New(t).NoErr(err) // existing lanes with invalid names can still be changed
}
