package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// farEngine is a lane engine. The test itself acts as its only forwarder.
type farEngine struct{}

func (farEngine) Name() string { return "far" }

func (farEngine) Use(_ context.Context, lanes []string) (map[string]job.EngineUse, error) {
	use := map[string]job.EngineUse{}
	for _, lane := range lanes {
		use[lane] = job.EngineUse{Open: 7, URL: "https://far.example/" + lane}
	}
	return use, nil
}

func (farEngine) JobURL(j job.JobRow) string { return "https://far.example/job" }

func (farEngine) Check(context.Context) []job.EngineFinding {
	return []job.EngineFinding{{Status: "warn", Says: "retention of 1 day", Do: "raise it"}}
}

// startFar starts a pod that serves the far engine, with the video lane.
func startFar(t *testing.T, handlers map[string]handler) (*runner.Runner, *outbox.Outbox) {
	t.Helper()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name) values ('video')`)
	r := newRunner(t, pool, runner.Options{}, handlers)
	is.NoErr(r.UseEngine(farEngine{}))
	is.True(errors.Is(r.UseEngine(farEngine{}), job.ErrInvalidSetting)) // registered twice
	run(t, r)
	is.True(r.UseEngine(farEngine{}) != nil) // after Run
	return r, inside.Of(r).Pod.Outbox("far")
}

// moveLane moves the video lane to an engine.
func moveLane(t *testing.T, r *runner.Runner, engine string) {
	t.Helper()
	is := is.New(t)
	_, err := r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
	is.NoErr(err)
	m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", time.Minute)
	is.NoErr(err)
	is.Equal(m, job.LaneMove{Lane: "video", Engine: engine})
}

// takeOne returns the one job that the engine can start.
func takeOne(t *testing.T, o *outbox.Outbox) outbox.Item {
	t.Helper()
	list, err := o.Due(t.Context(), 10)
	is := is.New(t)
	is.NoErr(err)
	is.Equal(len(list), 1)
	return list[0]
}

func TestLaneEngineRoundTrip(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	wait, open := latch(t)
	r, o := startFar(t, map[string]handler{"a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	first := enqueue(t, r, rawArgs("a"), runner.Lane("video"))
	pgtest.Wait(t, "the first job runs", func() bool { return get(t, r, first).State == job.Running })
	engine := "far"
	_, err := r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
	is.NoErr(err)
	is.True(inside.Of(r).Pod.BeatOnce(t.Context(), true)) // the pod hears of the move, so it does not start the second job
	second := enqueue(t, r, rawArgs("a"), runner.Lane("video"))
	m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", 100*time.Millisecond)
	is.NoErr(err)
	is.True(m.TimedOut && m.Running == 1 && m.Next == "far" && m.Engine == job.EnginePostgreSQL) // the lane does not move until the first job has ended
	none, err := o.Due(t.Context(), 10)
	is.NoErr(err)
	is.Equal(len(none), 0) // no job starts while the lane is moving
	blockers, err := r.Admin("").Blockers(t.Context(), second)
	is.NoErr(err)
	is.Equal(blockers[0].Why, job.BlockerMoving)
	open()
	moveLane(t, r, "far")
	is.Equal(get(t, r, second).State, job.Pending) // no pod runs the job anymore
	i := takeOne(t, o)
	is.Equal(i.ID, second)
	is.NoErr(o.Started(t.Context(), i.ID, i.Epoch(), "run"))
	is.Equal(get(t, r, second).State, job.Running)

	engine = job.EnginePostgreSQL
	_, err = r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
	is.NoErr(err)
	m, err = r.Admin("ana").ContinueLaneMove(t.Context(), "video", 0)
	is.NoErr(err)
	is.Equal(m.Running, 1)
	_, err = o.End(t.Context(), i.ID, i.Epoch(), outbox.End{State: job.Succeeded, Result: []byte(`"far"`)})
	is.NoErr(err)
	done, err := r.Wait(t.Context(), second)
	is.NoErr(err)
	is.Equal(string(done.Result), `"far"`)
	moveLane(t, r, job.EnginePostgreSQL)
	third := enqueue(t, r, rawArgs("a"), runner.Lane("video"))
	done, err = r.Wait(t.Context(), third)
	is.NoErr(err)
	is.Equal(*done.Pod, r.PodID())
}

func TestLaneMoveToUnservedEngine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, _ := startFar(t, nil)
	engine := "mars"
	_, err := r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
	is.True(errors.Is(err, job.ErrNoEngine))
	is.Equal(err.Error(), `no pod serves the engine mars: start a pod whose program registers it (set lane "video")`)
	m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", time.Minute)
	is.NoErr(err)
	is.Equal(m, job.LaneMove{Lane: "video", Engine: job.EnginePostgreSQL})
	_, err = r.Admin("ana").ContinueLaneMove(t.Context(), "nowhere", 0)
	is.True(errors.Is(err, job.ErrUnknownLane))
}

func TestLaneMoveAwaitingPodConfirmation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, _ := startFar(t, nil)
	pool := inside.Of(r).Store.Pool()
	silent := uuid.NewString() // a pod that still starts jobs in the lane because it has not sent a heartbeat since the move began
	exec(t, pool, `insert into trapeze.pods (id, name, lease_until, slots) values ($1, 'silent', now() + interval '8 seconds', 1)`, silent)
	engine := "far"
	_, err := r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
	is.NoErr(err)
	m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", 2*time.Second)
	is.NoErr(err)
	is.True(m.TimedOut && m.Pods >= 1 && m.Next == "far") // 2 if the heartbeat of r comes later
	beats := func() job.LaneMove {
		t.Helper()
		exec(t, pool, `update trapeze.pods set lease_until = lease_until + interval '1 millisecond' where id = $1`, silent)
		m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", 0)
		is.NoErr(err)
		return m
	}
	is.Equal(beats().Next, "far")                                                                      // one heartbeat is not enough: only a second one shows that the pod has applied the move
	for m = beats(); m.Next != ""; m, err = r.Admin("ana").ContinueLaneMove(t.Context(), "video", 0) { // maintenance may complete the move earlier
		is.NoErr(err)
	}
	is.Equal(m.Engine, "far")
}

func TestLaneMoveCompletedByMaintenance(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, _ := startFar(t, nil)
	engine := "far"
	_, err := r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
	is.NoErr(err)
	is.NoErr(r.Maintain(t.Context()))
	m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", 0)
	is.NoErr(err)
	is.Equal(m, job.LaneMove{Lane: "video", Engine: "far"})
	is.Equal(queryOne[int](t, inside.Of(r).Store.Pool(), `select count(*) from trapeze.audit where action = 'lane.engine' and actor = 'system'`), 1)
}

func TestLaneMoveReverted(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, _ := startFar(t, map[string]handler{"a": succeed})
	for _, engine := range []string{"far", job.EnginePostgreSQL} {
		_, err := r.Admin("ana").SetLane(t.Context(), "video", job.LaneChange{Engine: &engine})
		is.NoErr(err)
	}
	m, err := r.Admin("ana").ContinueLaneMove(t.Context(), "video", 0)
	is.NoErr(err)
	is.Equal(m, job.LaneMove{Lane: "video", Engine: job.EnginePostgreSQL})
	_, err = r.Wait(t.Context(), enqueue(t, r, rawArgs("a"), runner.Lane("video")))
	is.NoErr(err) // the lane is open again
}

func TestSubmissionPathsIntoEngineLane(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, o := startFar(t, map[string]handler{
		"a": succeed,
		"step": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("a"), runner.Lane("video")), nil
		},
		"fan": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("a"), runner.Lane("video"))), nil
		},
	})
	moveLane(t, r, "far")
	pool := inside.Of(r).Store.Pool()
	ends := func(in string) job.JobRow {
		t.Helper()
		var i outbox.Item
		pgtest.Wait(t, in+": the engine gets the job", func() bool {
			list, err := o.Due(t.Context(), 10)
			is.NoErr(err)
			if len(list) == 1 {
				i = list[0]
			}
			return len(list) == 1
		})
		is.Equal(i.Kind, "a")
		is.NoErr(o.Started(t.Context(), i.ID, i.Epoch(), "run"))
		_, err := o.End(t.Context(), i.ID, i.Epoch(), outbox.End{State: job.Succeeded})
		is.NoErr(err)
		return get(t, r, i.ID)
	}
	enqueue(t, r, rawArgs("a"), runner.Lane("video"))
	is.Equal(ends("Enqueue").State, job.Succeeded)
	is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := r.EnqueueTx(t.Context(), tx, rawArgs("a"), runner.Lane("video"))
		return err
	}))
	is.Equal(ends("EnqueueTx").State, job.Succeeded)
	enqueue(t, r, rawArgs("step"))
	is.Equal(ends("Then").State, job.Succeeded)
	fan := enqueue(t, r, rawArgs("fan"))
	is.Equal(ends("FanOut").State, job.Succeeded)
	done, err := r.Wait(t.Context(), fan)
	is.NoErr(err)
	is.Equal(done.State, job.Succeeded) // the end of the child was counted
	again := enqueue(t, r, rawArgs("a"), runner.Lane("video"))
	_, err = r.Admin("ana").Cancel(t.Context(), again)
	is.NoErr(err)
	_, err = r.Admin("ana").Retry(t.Context(), again, nil)
	is.NoErr(err)
	is.Equal(ends("Retry").State, job.Succeeded)
}

func TestChainPriorityOnOtherEngine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, o := startFar(t, map[string]handler{"a": succeed, "b": succeed})
	moveLane(t, r, "far")
	s, err := r.Enqueue(t.Context(), runner.Chain(rawArgs("a"), rawArgs("b")), runner.Lane("video"))
	is.NoErr(err)
	i := takeOne(t, o)
	is.NoErr(o.Started(t.Context(), i.ID, i.Epoch(), "run"))
	is.NoErr(r.Admin("ana").SetPriority(t.Context(), s.ID, 50, true)) // no pod has to confirm the priority
	is.Equal(queryOne[string](t, inside.Of(r).Store.Pool(), `select planned -> 0 ->> 'priority' from trapeze.jobs where id = $1`, s.ID), "50")
	is.Equal(get(t, r, s.ID).Priority, 50)
}
