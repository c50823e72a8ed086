package temporal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"
	"go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/internal/forwarder"
)

// until returns a handler that reports its start, waits until its context is cancelled, and sends the cause.
func until(started chan<- int64, causes chan<- error) handler {
	return func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		j.Progress(3, 7)
		started <- j.Fence()
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, ctx.Err()
	}
}

func TestTemporalCancelReachesHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	started, causes := make(chan int64, 1), make(chan error, 1)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"waits": until(started, causes)})
	w.start()
	id := w.enqueue("waits", `{}`)
	<-started
	_, err := w.Admin("ana").Cancel(t.Context(), id)
	is.NoErr(err)
	is.True(errors.Is(<-causes, job.ErrCancelled))
	is.Equal(w.wait(id).State, job.Cancelled)

	id = w.enqueue("waits", `{}`)
	<-started
	_, err = w.Admin("ana").ForceCancel(t.Context(), id)
	is.NoErr(err)
	is.Equal(w.wait(id).State, job.Cancelled)
	is.True(errors.Is(<-causes, job.ErrLeaseLost)) // the run was terminated
}

func TestTemporalRunsOfStoppingPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	started, causes := make(chan int64, 1), make(chan error, 1)
	first := open(t, pool, temporal.Options{}, map[string]handler{"k": until(started, causes)})
	stop := first.start()
	id := first.enqueue("k", `{}`)
	fence := <-started
	second := open(t, pool, temporal.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		return runner.Done(map[string]any{"fence": j.Fence(), "attempt": j.Attempt(), "crashes": j.Crashes()}), nil
	}})
	second.start()
	stop()
	is.True(errors.Is(<-causes, job.ErrShutdown))
	is.Equal(string(second.wait(id).Result), fmt.Sprintf(`{"attempt":1,"crashes":0,"fence":%d}`, fence+1))
}

// cutOff returns a dial option that blocks heartbeats while off is set.
func cutOff(off *atomic.Bool) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, in, out any, c *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		if off.Load() && strings.HasSuffix(method, "/RecordActivityTaskHeartbeat") {
			return status.Error(codes.Unavailable, "no route to host")
		}
		return call(ctx, method, in, out, c, o...)
	})
}

func TestTemporalWorkerCutOff(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	off, causes, second := &atomic.Bool{}, make(chan error, 10), make(chan struct{})
	w := openWith(t, pgtest.Pool(t), cutOff(off), temporal.Options{}, map[string]handler{
		"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var before int64
			again, err := j.LastCheckpoint(&before)
			if err != nil || again {
				close(second)
				return runner.Done([]any{before < j.Fence(), j.Crashes(), j.Attempt()}), err
			}
			if err := j.Checkpoint(ctx, j.Fence()); err != nil {
				return nil, err
			}
			off.Store(true)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			off.Store(false)
			<-second
			return runner.Done("of the former worker"), nil
		},
		"dies": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			off.Store(true)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			off.Store(false)
			return nil, ctx.Err()
		},
	})
	w.start()
	is.Equal(string(w.wait(w.enqueue("k", `{}`)).Result), `[true,1,1]`)
	is.True(errors.Is(<-causes, job.ErrLeaseLost))
	j := w.wait(w.enqueue("dies", `{}`))
	is.Equal(j.State, job.Failed)
	is.Equal(*j.Reason, job.ReasonCrashed) // the job reached its crash limit
	is.Equal(len(causes), 3)
}

// forward returns a forwarder for the test to call, and the only due job. No pod serves the job's lane.
func forward(t *testing.T) (*world, *forwarder.Forwarder, outbox.Item) {
	t.Helper()
	is := is.New(t)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": nothing})
	_, err := w.pool.Exec(t.Context(), `insert into trapeze.lanes (name, engine) values ('far', 'temporal')`)
	is.NoErr(err)
	p := inside.Of(w.Runner).Pod
	f := &forwarder.Forwarder{Client: w.client, Converter: converter.GetDefaultDataConverter(), Outbox: p.Outbox(temporal.Name), Names: forwarder.Names{Prefix: t.Name()}, Heartbeat: 2 * time.Second, Log: quiet, Damped: p.Damped}
	w.enqueue("k", `{}`, runner.Lane("far"))
	return w, f, dueOne(t, f)
}

func dueOne(t *testing.T, f *forwarder.Forwarder) outbox.Item {
	t.Helper()
	list, err := f.Outbox.Due(t.Context(), 10)
	is := is.New(t)
	is.NoErr(err)
	is.Equal(len(list), 1)
	return list[0]
}

// runOf returns the run that the outbox has recorded for a job, or an empty string.
func (w *world) runOf(id int64) (run string) {
	w.t.Helper()
	is.New(w.t).NoErr(w.pool.QueryRow(w.t.Context(), `select coalesce(run, '') from trapeze.outbox where id = $1`, id).Scan(&run))
	return run
}

func TestTwoForwardersStartOneRun(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, f, i := forward(t)
	is.NoErr(f.Start(t.Context(), i))
	is.Equal(w.runOf(i.ID), "") // either the forwarder died here, or the run has yet to record its start
	is.NoErr(f.Start(t.Context(), i))
	run := w.runOf(i.ID)
	is.True(run != "") // the second forwarder has learned that the first one had started the run
	found, err := w.client.DescribeWorkflowExecution(t.Context(), f.Names.Workflow(i.ID, i.Epoch()), "")
	is.NoErr(err)
	is.Equal(found.WorkflowExecutionInfo.Execution.RunId, run)
	is.NoErr(f.Start(t.Context(), i))
	is.Equal(w.runOf(i.ID), run)
}

func TestTemporalReconcilerExternallyEndedRuns(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, f, i := forward(t)
	id := f.Names.Workflow(i.ID, i.Epoch())
	lost := func(i outbox.Item) {
		t.Helper()
		is.NoErr(f.Start(t.Context(), i))
		is.NoErr(f.Start(t.Context(), i)) // records the run
	}
	lost(i)
	is.NoErr(f.Reconcile(t.Context(), time.Nanosecond))
	is.Equal(w.job(i.ID).State, job.Running) // an open run is not touched

	_, err := w.client.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: server().Namespace(), WorkflowExecution: &common.WorkflowExecution{WorkflowId: id}})
	is.NoErr(err)
	pgtest.Wait(t, "temporal has forgotten the run", func() bool {
		_, err := w.client.DescribeWorkflowExecution(t.Context(), id, "")
		return err != nil
	})
	is.NoErr(f.Reconcile(t.Context(), time.Nanosecond))
	is.Equal(w.job(i.ID).State, job.Pending)
	again := dueOne(t, f)
	is.True(again.Epoch() > i.Epoch())
	is.Equal(again.Crashes, 1)

	lost(again)
	id = f.Names.Workflow(again.ID, again.Epoch())
	is.NoErr(w.client.TerminateWorkflow(t.Context(), id, "", "by hand"))
	pgtest.Wait(t, "the run is terminated", func() bool {
		found, err := w.client.DescribeWorkflowExecution(t.Context(), id, "")
		is.NoErr(err)
		return found.WorkflowExecutionInfo.Status == enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
	})
	is.NoErr(f.Reconcile(t.Context(), time.Nanosecond))
	is.Equal(w.job(i.ID).State, job.Cancelled)
}

func TestTemporalRunTerminated(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, f, i := forward(t)
	is.NoErr(f.Start(t.Context(), i))
	is.NoErr(f.Start(t.Context(), i)) // records the run
	id := f.Names.Workflow(i.ID, i.Epoch())
	_, err := w.client.WorkflowService().TerminateWorkflowExecution(t.Context(), &workflowservice.TerminateWorkflowExecutionRequest{
		Namespace: server().Namespace(), WorkflowExecution: &common.WorkflowExecution{WorkflowId: id}, Reason: "history is too large", Identity: "history-service"})
	is.NoErr(err)
	is.NoErr(f.Reconcile(t.Context(), time.Nanosecond))
	j := w.job(i.ID)
	is.Equal(j.State, job.Failed)
	is.True(strings.Contains(*j.Error, "history is too large"))
}

func TestTemporalVerdictNeedsHandlerPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	started, finish := make(chan struct{}), make(chan struct{})
	large := `"` + strings.Repeat("x", 1_048_500) + `"`
	without := open(t, pool, temporal.Options{HandlersElsewhere: true}, nil) // also serves the workflows, because no other pod runs
	stop := without.start()
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: quiet})
	is.NoErr(err)
	defer r.Close()
	runner.HandleRaw(r, "k", func(context.Context, *raw) (*runner.Outcome, error) {
		close(started)
		<-finish
		return runner.Done(json.RawMessage(large)), nil
	})
	go func() {
		_ = temporal.Work(t.Context(), r, temporal.Options{Client: without.client, Prefix: t.Name(), HeartbeatTimeout: 2 * time.Second}, 1, job.DefaultLane)
	}()
	w := open(t, pool, temporal.Options{HandlersElsewhere: true}, map[string]handler{"k": nothing})
	id := w.enqueue("k", large)
	<-started
	close(finish)
	pgtest.Wait(t, "the pod without the handler has passed the verdict on", func() bool {
		found, err := w.client.DescribeWorkflowExecution(t.Context(), forwarder.Names{Prefix: t.Name()}.Workflow(id, outbox.EpochOf(w.job(id).Fence)), "")
		is.NoErr(err)
		return len(found.PendingActivities) == 1 && found.PendingActivities[0].ActivityType.Name == "trapeze settle"
	})
	stopOther := w.start()
	is.Equal(w.wait(id).State, job.Succeeded)
	stopOther()
	stop()
}

func TestTemporalStartOfPastEpoch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	pool := pgtest.Pool(t)
	w := open(t, pool, temporal.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		calls.Add(1)
		return nil, nil
	}})
	w.start()
	id := w.enqueue("k", `{}`)
	j := w.wait(id)
	epoch := outbox.EpochOf(j.Fence)
	names := forwarder.Names{Prefix: t.Name()}
	// Simulate a forwarder that is paused until Temporal has forgotten the run and then starts the epoch again.
	pgtest.Wait(t, "the run is closed", func() bool {
		found, err := w.client.DescribeWorkflowExecution(t.Context(), names.Workflow(id, epoch), "")
		is.NoErr(err)
		return found.WorkflowExecutionInfo.Status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	})
	_, err := w.client.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: server().Namespace(), WorkflowExecution: &common.WorkflowExecution{WorkflowId: names.Workflow(id, epoch)}})
	is.NoErr(err)
	pgtest.Wait(t, "temporal has forgotten the run", func() bool {
		_, err := w.client.DescribeWorkflowExecution(t.Context(), names.Workflow(id, epoch), "")
		return err != nil
	})
	f := &forwarder.Forwarder{Client: w.client, Converter: converter.GetDefaultDataConverter(), Outbox: inside.Of(w.Runner).Pod.Outbox(temporal.Name), Names: names, Heartbeat: 2 * time.Second, Log: quiet}
	f.Database, err = f.Outbox.Database(t.Context())
	is.NoErr(err)
	is.NoErr(f.Start(t.Context(), outbox.Item{ID: id, Fence: j.Fence, Lane: job.DefaultLane, Definition: store.Definition{Kind: "k", Args: []byte(`{}`)}}))
	is.NoErr(w.client.GetWorkflow(t.Context(), names.Workflow(id, epoch), "").Get(t.Context(), nil)) // the second run ends
	is.Equal(calls.Load(), int64(1))
	is.Equal(w.job(id).State, job.Succeeded)
}

func TestDoctorTemporalProblems(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	says := func(namespace string) (list []string) {
		r, err := runner.New(pgtest.Pool(t), runner.Options{Logger: quiet})
		is.NoErr(err)
		defer r.Close()
		c, err := server().Dial(sdklog.NewStructuredLogger(quiet))
		is.NoErr(err)
		defer c.Close()
		is.NoErr(temporal.Open(r, temporal.Options{Client: c, Namespace: namespace}))
		findings, err := inside.Of(r).Pod.Examine(t.Context(), inside.Of(r).Store, doctor.Thresholds{})
		is.NoErr(err)
		for _, one := range findings {
			if one.Check == temporal.Name && one.Status != "ok" {
				list = append(list, one.Says+": "+one.Do)
			}
		}
		return list
	}
	is.Equal(says("nowhere"), []string{"namespace nowhere: Namespace nowhere is not found.: create it: temporal operator namespace create --namespace nowhere --retention 3d"})
	c, err := server().Dial(sdklog.NewStructuredLogger(quiet))
	is.NoErr(err)
	defer c.Close()
	_, err = c.WorkflowService().RegisterNamespace(t.Context(), &workflowservice.RegisterNamespaceRequest{Namespace: "brief", WorkflowExecutionRetentionPeriod: durationpb.New(time.Hour)})
	is.NoErr(err)
	pgtest.Wait(t, "the namespace is known", func() bool { return !strings.Contains(strings.Join(says("brief"), ""), "not found") })
	is.True(strings.Contains(strings.Join(says("brief"), ""), "closed runs are kept for 1h0m0s"))
}

func TestTemporalLaneStaleLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	started, causes := make(chan int64, 1), make(chan error, 1)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": until(started, causes)}, runner.NoRetry())
	_, err := w.pool.Exec(t.Context(), `update trapeze.lanes set inactivity_timeout_s = 1 where name = 'default'`)
	is.NoErr(err)
	w.start()
	j := w.wait(w.enqueue("k", `{}`))
	is.True(errors.Is(<-causes, job.ErrInactive))
	is.Equal(*j.Reason, job.ReasonInactive)
}

func TestTemporalPrefixConflictReported(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, f, i := forward(t)
	is.NoErr(f.Start(t.Context(), i))
	i.ClaimedAt = i.ClaimedAt.Add(time.Hour) // as if another database had claimed a job with the same id later
	err := f.Start(t.Context(), i)
	is.True(errors.Is(err, job.ErrInvalidSetting))
	is.True(strings.Contains(err.Error(), "prefix"))
	is.Equal(w.runOf(i.ID), "") // the other database's run does not count
}

func TestTemporalHandlerIgnoringTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	release := make(chan struct{})
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-release
		return nil, nil
	}}, runner.Timeout(50*time.Millisecond), runner.NoRetry())
	defer close(release)
	w.start()
	j := w.wait(w.enqueue("k", `{}`))
	is.Equal(*j.Reason, job.ReasonTimeout)
}

func TestTemporalLaneMoveDuringRetries(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var fences []int64
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if fences = append(fences, j.Fence()); len(fences) < 3 {
			return nil, job.RetryAfter(time.Second, errors.New("not yet"))
		}
		return nil, nil
	}})
	w.start()
	id := w.enqueue("k", `{}`, runner.MaxAttempts(3))
	w.waitAttempt(id, 1)
	w.move(job.DefaultLane, job.EnginePostgreSQL)
	w.waitAttempt(id, 2)
	w.move(job.DefaultLane, temporal.Name)
	j := w.wait(id)
	is.Equal(j.State, job.Succeeded)
	is.Equal(j.Attempt, 3)
	is.True(fences[0] < fences[1] && fences[1] < fences[2])
}

// waitAttempt waits until attempt n has failed and the job is waiting for the next one.
func (w *world) waitAttempt(id int64, n int) {
	w.t.Helper()
	pgtest.Wait(w.t, fmt.Sprintf("attempt %d has failed", n), func() bool {
		j := w.job(id)
		return j.State == job.Pending && j.Attempt == n
	})
}

func TestTemporalInDoctorAndDashboard(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	started, causes := make(chan int64, 1), make(chan error, 1)
	w := open(t, pgtest.Pool(t), temporal.Options{UI: "https://temporal.example/"}, map[string]handler{"k": until(started, causes)})
	runner.HandleRaw(w.Runner, "declared", nothing, runner.RequiresDatabase())
	w.start()
	id := w.enqueue("k", `{}`)
	fence := <-started
	var j job.JobRow
	pgtest.Wait(t, "the progress is shown", func() bool {
		j = w.job(id)
		inside.Of(w.Runner).Pod.NameEngine(t.Context(), &j)
		return j.Progress != nil && *j.Progress.Done == 3
	})
	is.Equal(j.Engine, temporal.Name)
	is.Equal(j.EngineURL, fmt.Sprintf("https://temporal.example/namespaces/%s/workflows/%s-%d-%d", server().Namespace(), t.Name(), id, outbox.EpochOf(fence)))
	lanes := []job.LaneUse{{Name: job.DefaultLane, Engine: temporal.Name}}
	pgtest.Wait(t, "visibility shows the run", func() bool {
		inside.Of(w.Runner).Pod.AddEngineUse(t.Context(), lanes)
		is.Equal(lanes[0].EngineUse.Error, "")
		return lanes[0].EngineUse.Open == 1
	})
	findings, err := inside.Of(w.Runner).Pod.Examine(t.Context(), inside.Of(w.Runner).Store, doctor.Thresholds{})
	is.NoErr(err)
	found, warned := false, false
	for _, one := range findings {
		warned = warned || strings.Contains(one.Says, "jobs of kind declared fail in lane default")
		found = found || one.Check == temporal.Name && one.Says == "connected to namespace "+server().Namespace()
	}
	is.True(found)
	is.True(warned)
	_, err = w.Admin("ana").Cancel(t.Context(), id)
	is.NoErr(err)
	is.Equal(w.wait(id).State, job.Cancelled)
}

func TestTemporalHandlersOfDrainedPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	started, canceled, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var returned atomic.Bool
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		close(started)
		<-ctx.Done()
		close(canceled)
		<-release
		returned.Store(true)
		return nil, ctx.Err()
	}})
	stop := w.start()
	w.enqueue("k", `{}`)
	<-started
	_, err := w.Admin("ana").DrainPod(t.Context(), w.PodID(), 0)
	is.NoErr(err)
	<-canceled // the pod is draining, and the grace period is over
	time.AfterFunc(200*time.Millisecond, func() { close(release) })
	stop()
	is.True(returned.Load())
}

func TestTemporalPrefixConflictJobIsolation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var worlds []*world
	for _, name := range []string{"a", "b"} {
		w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if got := string(j.Args.JSON); got != fmt.Sprintf(`"%s"`, name) {
				t.Errorf("a pod of %s has called a handler with the args %s", name, got)
			}
			return runner.Done(name), nil
		}})
		w.start()
		worlds = append(worlds, w)
	}
	_, err := worlds[1].pool.Exec(t.Context(), `select setval('trapeze.job_ids', 1000000)`) // with equal ids, the second run would not be started
	is.NoErr(err)
	for range 10 {
		for i, w := range worlds {
			w.enqueue("k", fmt.Sprintf(`"%s"`, string(rune('a'+i))))
		}
	}
	pgtest.Wait(t, "jobs of both databases have ended", func() bool { // the others end once a pod of the right database receives them
		return one[int](worlds[0], `select count(*) from trapeze.done`) > 1 && one[int](worlds[1], `select count(*) from trapeze.done`) > 1
	})
}

func TestTemporalCancelledHandlerCleanup(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const timeout = 2 * time.Second
	started, cleans, clean := make(chan struct{}), make(chan time.Time, 1), make(chan struct{})
	w := open(t, pgtest.Pool(t), temporal.Options{HeartbeatTimeout: timeout}, map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		close(started)
		<-ctx.Done()
		cleans <- time.Now()
		<-clean
		return nil, ctx.Err()
	}})
	w.start()
	id := w.enqueue("k", `{}`)
	<-started
	_, err := w.Admin("ana").Cancel(t.Context(), id)
	is.NoErr(err)
	since := <-cleans
	pgtest.Wait(t, "heartbeats arrive for longer than their timeout", func() bool {
		d, err := w.client.DescribeWorkflowExecution(t.Context(), forwarder.Names{Prefix: t.Name()}.Workflow(id, 1), "")
		activities := d.GetPendingActivities()
		return err == nil && (len(activities) == 0 || activities[0].GetLastHeartbeatTime().AsTime().Sub(since) > timeout)
	})
	is.Equal(w.job(id).State, job.Running)
	close(clean)
	is.Equal(w.wait(id).State, job.Cancelled)
}

func TestTemporalCrashCountAfterCheckpoint(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	off := &atomic.Bool{}
	w := openWith(t, pgtest.Pool(t), cutOff(off), temporal.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if again, err := j.LastCheckpoint(new(int)); err != nil || again {
			return runner.Done(j.Crashes()), err
		}
		if err := j.Checkpoint(ctx, 1); err != nil {
			return nil, err
		}
		off.Store(true)
		<-ctx.Done()
		off.Store(false)
		return nil, ctx.Err()
	}})
	_, err := w.pool.Exec(t.Context(), `insert into trapeze.lanes (name, engine) values ('far', 'temporal')`)
	is.NoErr(err)
	id := w.enqueue("k", `{}`, runner.Lane("far"))
	_, err = w.pool.Exec(t.Context(), `update trapeze.live set crashes = 2`) // one below the limit
	is.NoErr(err)
	w.start()
	is.Equal(string(w.wait(id).Result), `1`)
}

func TestTemporalActivityReset(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	fences := make(chan int64, 10)
	var calls atomic.Int64
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		fences <- j.Fence()
		if calls.Add(1) < 3 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	}}, runner.MaxCrashes(9))
	w.start()
	id := w.enqueue("k", `{}`)
	fence := <-fences
	for range 2 {
		_, err := w.client.WorkflowService().ResetActivity(t.Context(), &workflowservice.ResetActivityRequest{Namespace: server().Namespace(),
			Execution: &common.WorkflowExecution{WorkflowId: forwarder.Names{Prefix: t.Name()}.Workflow(id, outbox.EpochOf(fence))},
			Activity:  &workflowservice.ResetActivityRequest_Type{Type: "k"}})
		is.NoErr(err)
		next := <-fences
		is.True(next > fence)
		fence = next
	}
	is.Equal(w.wait(id).State, job.Succeeded)
}

func TestTemporalStuckHandlerSlot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	started, release := make(chan struct{}, 8), make(chan struct{})
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{
		"stuck": func(context.Context, *raw) (*runner.Outcome, error) {
			started <- struct{}{}
			<-release
			return nil, nil
		},
		"k": func(context.Context, *raw) (*runner.Outcome, error) {
			select {
			case <-release:
				return runner.Done("in a free slot"), nil
			default:
				return runner.Done("in a slot of a stuck handler"), nil
			}
		},
	})
	w.start()
	var stuck []int64
	for range 8 { // occupies all of the pod's slots
		stuck = append(stuck, w.enqueue("stuck", `{}`))
	}
	for range stuck {
		<-started
	}
	for _, id := range stuck {
		_, err := w.Admin("ana").Cancel(t.Context(), id)
		is.NoErr(err)
	}
	for _, id := range stuck {
		is.Equal(w.wait(id).State, job.Cancelled) // although its handler has not returned
	}
	id := w.enqueue("k", `{}`)
	pgtest.Wait(t, "the activity of the job is scheduled", func() bool {
		d, err := w.client.DescribeWorkflowExecution(t.Context(), forwarder.Names{Prefix: t.Name()}.Workflow(id, 1), "")
		return err == nil && len(d.GetPendingActivities()) == 1 || one[int](w, `select count(*) from trapeze.done`) > 8
	})
	close(release)
	is.Equal(string(w.wait(id).Result), `"in a free slot"`)
}

func TestTemporalRunsByIDPrefix(t *testing.T) { // follows docs/erasure.md
	t.Parallel()
	is := is.New(t)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if j.Attempt() == 1 {
			return nil, runner.RetryAfter(0, errors.New("once more"))
		}
		return nil, nil
	}})
	w.start()
	id, other := w.enqueue("k", `{}`), w.enqueue("k", `{}`)
	is.Equal(w.wait(id).State, job.Succeeded)
	is.Equal(w.wait(other).State, job.Succeeded)
	runs := func(id int64) []*workflow.WorkflowExecutionInfo {
		list, err := w.client.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
			Query: fmt.Sprintf("WorkflowId STARTS_WITH '%s-%d-'", t.Name(), id)})
		is.NoErr(err)
		return list.GetExecutions()
	}
	pgtest.Wait(t, "both runs of both jobs are visible", func() bool { return len(runs(id)) == 2 && len(runs(other)) == 2 })
	for _, one := range runs(id) {
		_, err := w.client.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
			Namespace: server().Namespace(), WorkflowExecution: one.GetExecution()})
		is.NoErr(err)
	}
	pgtest.Wait(t, "the runs of the job are gone", func() bool { return len(runs(id)) == 0 })
	is.Equal(len(runs(other)), 2)
}
