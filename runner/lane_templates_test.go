package runner_test

import (
	"context"
	"errors"
	"testing"

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
	o := runner.Options{PollEvery: seldom, HeartbeatEvery: seldom / 4, LeaseFor: seldom}
	steps := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		switch j.Lane() {
		case "tenant/step":
			return runner.Then(rawArgs("k"), runner.Lane("tenant/next")), nil
		case "tenant/fan":
			return runner.FanOut(runner.Step(rawArgs("k"), runner.Lane("tenant/child"))).Join(rawArgs("k"), runner.Lane("tenant/join")), nil
		case "tenant/fails":
			return nil, runner.Permanent(errors.New("as planned"))
		}
		return nil, nil
	}
	r := start(t, pool, o, map[string]handler{"k": steps, "undo": succeed})
	_, err := r.Admin().SetLane(t.Context(), "tenant/*", job.LaneChange{Slots: job.To(2)}, "ann")
	is.NoErr(err)
	_, err = r.Admin().SetLane(t.Context(), "tenant/vip/*", job.LaneChange{Slots: job.To(9)}, "ann")
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
	submit(runner.Chain(rawArgs("k"), runner.Step(rawArgs("k"), runner.Lane("tenant/link"))), runner.Lane("tenant/chain"))
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
	_, err = r.Enqueue(t.Context(), rawArgs("k"), runner.Lane("tenant/fails"), runner.OnFailure(runner.Step(rawArgs("undo"), runner.Lane("tenant/undo"))))
	is.NoErr(err)
	quiet(t, pool)
	lanes := column[string](t, pool, `select name || ' ' || slots || ' ' || template from trapeze.lanes where template is not null order by name collate "C"`)
	is.Equal(lanes, []string{"tenant/chain 2 tenant/*", "tenant/child 2 tenant/*", "tenant/fails 2 tenant/*", "tenant/fan 2 tenant/*", "tenant/join 2 tenant/*", "tenant/link 2 tenant/*", "tenant/many 2 tenant/*",
		"tenant/next 2 tenant/*", "tenant/plain 2 tenant/*", "tenant/sql 2 tenant/*", "tenant/step 2 tenant/*", "tenant/tx 2 tenant/*", "tenant/undo 2 tenant/*", "tenant/vip/1 9 tenant/vip/*"})
}
