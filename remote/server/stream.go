package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// StreamJobs implements [remotepb.WorkersHandler].
func (s *server) StreamJobs(ctx context.Context, in *connect.Request[remotepb.StreamJobsRequest], out *connect.ServerStream[remotepb.Assignment]) error {
	caller, m := callerOf(ctx), in.Msg
	kinds, err := kindsOf(m, caller)
	if err != nil {
		return err
	}
	// As many as the worker has slots are on their way at most, and those that were given back meanwhile.
	sending := make(chan *remotepb.Assignment, 4*max(1, min(int(m.GetSlots()), 1000)))
	o := runner.GuestOptions{
		ID: m.GetWorkerId(), Name: m.GetName(), Version: m.GetVersion(), Owner: caller.Name, Kinds: kinds, Lane: caller.Lane, Slots: int(m.GetSlots()),
		Send: func(a runner.Assignment) error {
			select {
			case sending <- assignment(a):
				return nil
			default:
				return errors.New("the worker does not read")
			}
		},
	}
	for _, r := range m.GetRunning() {
		o.Running = append(o.Running, claim(r.GetJobId(), r.GetFence(), r.GetToken()))
	}
	guest, err := s.r.Receive(ctx, o)
	if err != nil {
		return wrong(err)
	}
	if err := out.Send(nil); err != nil { // the headers: the worker is received
		return err
	}
	for {
		select {
		case a := <-sending:
			if err := out.Send(a); err != nil {
				return err
			}
		case <-guest.Over():
			return wrong(guest.Why())
		case <-guest.Stopped():
			select {
			case <-guest.Over():
				return wrong(guest.Why())
			default:
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return connect.NewError(connect.CodeUnavailable, errors.New("the stream ended: open it again, unless you stop"))
		}
	}
}

// kindsOf are the kinds that a worker is to be sent, with what holds for them: topics of all it registered, or all of those.
func kindsOf(m *remotepb.StreamJobsRequest, caller Caller) (kinds []runner.GuestKind, err error) {
	topics := m.GetTopics()
	known := map[string]runner.GuestKind{}
	for _, k := range m.GetKinds() {
		known[k.GetName()] = kind(k)
		if len(m.GetTopics()) == 0 {
			topics = append(topics, k.GetName())
		}
	}
	slices.Sort(topics)
	for _, name := range slices.Compact(topics) {
		if caller.Kind != nil && !caller.Kind(name) {
			return nil, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("forbidden: %s may not run jobs of the kind %q", caller.Name, name))
		}
		k := known[name]
		k.Name = name
		kinds = append(kinds, k)
	}
	return kinds, nil
}

func kind(k *remotepb.Kind) runner.GuestKind {
	told := runner.GuestKind{Name: k.GetName(), MaxAttempts: int(k.GetMaxAttempts()), MaxCrashes: int(k.GetMaxCrashes())}
	if k.Timeout != nil {
		timeout := k.GetTimeout().AsDuration()
		told.Timeout = &timeout
	}
	if k.StaleAfter != nil {
		after := k.GetStaleAfter().AsDuration()
		told.StaleAfter = &after
	}
	if b := k.GetBackoff(); b != nil {
		told.Backoff.Base, told.Backoff.Cap = b.GetFirst().AsDuration(), b.GetMost().AsDuration()
	}
	return told
}

// #nosec G115 -- small numbers that came from columns of 32 bits
func assignment(a runner.Assignment) *remotepb.Assignment {
	m := &remotepb.Assignment{
		JobId: a.ID, Fence: a.Fence, Attempt: int32(a.Attempt), Kind: a.Kind, Args: a.Args, Lane: a.Lane, Subject: a.Subject, Token: a.Token,
		Priority: int32(a.Priority), Crashes: int32(a.Crashes), PipelineId: a.PipelineID, Step: int32(a.Step), ParentId: a.ParentID,
		ClaimedAt: timestamppb.New(a.ClaimedAt), Path: a.Path, Checkpoint: a.Checkpoint, PutOff: int32(a.PutOff), Traceparent: a.Trace,
	}
	if !a.Deadline.IsZero() {
		m.Deadline = timestamppb.New(a.Deadline)
	}
	return m
}

func claim(id, fence int64, token []byte) runner.GuestClaim {
	return runner.GuestClaim{ID: id, Fence: fence, Token: token}
}
