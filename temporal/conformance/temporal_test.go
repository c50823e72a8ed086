package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/devserver"
)

// server is the Temporal server that all cases share. Each case uses a different prefix.
var server = sync.OnceValue(devserver.Start)

// dial returns a client for the server.
func dial(w *world) client.Client {
	w.Helper()
	c, err := server().Dial(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w.NoErr(err)
	w.Cleanup(c.Close)
	return c
}

// progressIn returns the progress of a running job, as recorded in its activity's heartbeats.
func progressIn(w *world, j job.JobRow) *job.Progress {
	w.Helper()
	if j.State != job.Running {
		return nil
	}
	run, err := dial(w).DescribeWorkflowExecution(w.Context(), fmt.Sprintf("%s-%d-%d", w.prefix, j.ID, outbox.EpochOf(j.Fence)), "")
	if err != nil || len(run.GetPendingActivities()) == 0 {
		return nil
	}
	var details struct{ Progress job.Progress }
	err = converter.GetDefaultDataConverter().FromPayloads(run.GetPendingActivities()[0].GetHeartbeatDetails(), &details)
	if err != nil {
		return nil // no heartbeat yet
	}
	return &details.Progress
}

// options returns options with short intervals.
func options(w *world) temporal.Options {
	w.Helper()
	return temporal.Options{Client: dial(w), Namespace: server().Namespace(), Prefix: w.prefix, HeartbeatTimeout: 2 * time.Second,
		PollInterval: 200 * time.Millisecond, ReconcileEvery: time.Second, HandlersElsewhere: w.engine.workers}
}

// openTemporal opens Temporal on a pod.
func openTemporal(w *world, r *runner.Runner) {
	w.Helper()
	w.NoErr(temporal.Open(r, options(w)))
}

// elsewhere returns the worker without a database.
func (w *world) elsewhere() *runner.Runner {
	w.Helper()
	if w.worker == nil {
		r, err := runner.NewRemote(runner.RemoteOptions{Logger: slog.New(slog.DiscardHandler), Middleware: w.o.Middleware})
		w.NoErr(err)
		w.worker = r
	}
	return w.worker
}

// handleElsewhere registers a handler with the worker. It omits the kind's failure options, which belong on the pod.
func (w *world) handleElsewhere(kind string, handler does, options ...runner.HandleOption) {
	w.Helper()
	options = slices.DeleteFunc(slices.Clone(options), func(o runner.HandleOption) bool { _, ok := o.(runner.FailureOption); return ok })
	runner.HandleRaw(w.elsewhere(), kind, handler, options...)
}

// onlyInPods returns a handler for a pod that must not be called in Temporal lanes.
func (w *world) onlyInPods(handler does) does {
	return func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if name := pgtest.QueryOne[string](w.T, w.pool, `select engine from trapeze.lanes where name = $1`, j.Lane()); name != job.EnginePostgreSQL {
			w.Errorf("a pod called the handler of job %d in lane %s", j.ID(), j.Lane())
		}
		return handler(ctx, j)
	}
}

// work runs the worker until the case ends or stop is called, which also stops the pod.
func (w *world) work(stopPod func()) (stop func()) {
	w.Helper()
	r := w.elsewhere()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- temporal.Work(ctx, r, options(w), 8, job.DefaultLane, "careful", "moves") }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("Work: %v", err)
		}
		r.Close()
		stopPod()
	})
	w.Cleanup(stop)
	return stop
}
