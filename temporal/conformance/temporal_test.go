package conformance

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"

	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/devserver"
)

// server is the Temporal server of all cases. Each case has a prefix.
var server = sync.OnceValue(devserver.Start)

// dial returns a client of the server.
func dial(w *world) client.Client {
	w.Helper()
	c, err := server().Dial(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w.NoErr(err)
	w.Cleanup(c.Close)
	return c
}

// progressIn returns the progress of a running job from the heartbeats of its activity.
func progressIn(w *world, j job.Job) *job.Progress {
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

// openTemporal opens Temporal with short intervals.
func openTemporal(w *world, r *runner.Runner) {
	w.Helper()
	w.NoErr(temporal.Open(r, temporal.Options{Client: dial(w), Namespace: server().Namespace(), Prefix: w.prefix, HeartbeatTimeout: 2 * time.Second,
		PollEvery: 200 * time.Millisecond, ReconcileEvery: time.Second}))
}
