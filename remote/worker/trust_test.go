package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/matryer/is"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// silentPod replies to one heartbeat and grants a short lease. It does not reply to the next heartbeat until the handler's context is
// cancelled.
type silentPod struct {
	remotepb.WorkersClient
	answered  bool
	handler   context.Context
	cancelled bool // the handler's context was cancelled before the second heartbeat timed out
}

func (p *silentPod) Heartbeat(ctx context.Context, _ *connect.Request[remotepb.HeartbeatRequest]) (*connect.Response[remotepb.HeartbeatResponse], error) {
	if !p.answered {
		p.answered = true
		return connect.NewResponse(&remotepb.HeartbeatResponse{Lease: durationpb.New(100 * time.Millisecond)}), nil
	}
	select {
	case <-p.handler.Done():
		p.cancelled = true
	case <-ctx.Done():
	}
	return nil, context.DeadlineExceeded
}

func (p *silentPod) ReportResult(context.Context, *connect.Request[remotepb.ReportResultRequest]) (*connect.Response[remotepb.ReportResultResponse], error) {
	return nil, connect.NewError(connect.CodeUnavailable, context.DeadlineExceeded)
}

// A worker's lease may expire while the worker is waiting for the reply to a heartbeat. Its jobs may then run elsewhere.
func TestRemoteCancelDuringHeartbeat(t *testing.T) {
	is := is.New(t)
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	t.Cleanup(r.Close)
	begun := make(chan context.Context, 1)
	runner.HandleRaw(r, "far", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		begun <- ctx
		<-ctx.Done()
		return nil, ctx.Err()
	})
	w, err := New(r, Options{Server: "http://127.0.0.1:1", Slots: 1, Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	w.take(&remotepb.Assignment{JobId: 1, Fence: 1, Kind: "far"})
	pod := &silentPod{handler: <-begun}
	w.servers.all = []server{{client: pod}}
	w.beatOnce(t.Context(), time.Now(), time.Second)
	w.beatOnce(t.Context(), time.Now(), time.Minute) // the heartbeat's timeout
	is.True(pod.cancelled)
	is.Equal(context.Cause(pod.handler), job.ErrLeaseLost)
	for _, one := range w.list() {
		one.lose(job.ErrLeaseLost) // otherwise, the task would keep repeating its report
	}
	w.working.Wait()
}
