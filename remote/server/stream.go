package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// recheckInterval is the interval at which an open stream's credentials are rechecked, because a token can expire or be removed, and
// permissions can change. It equals the interval for the API's streams.
const recheckInterval = 3 * time.Second

// StreamJobs implements [remotepb.WorkersHandler].
func (s *server) StreamJobs(ctx context.Context, in *connect.Request[remotepb.StreamJobsRequest], out *connect.ServerStream[remotepb.Assignment]) error {
	caller, m := senderOf(ctx), in.Msg
	kinds, err := kindsOf(m, caller.Caller)
	if err != nil {
		return err
	}
	if !s.limit(s.opens, caller.Name, s.opts.OpensPerSecond, 2*s.opts.MostStreams).Allow() {
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("too_often: more than %v streams opened a second: try again later", s.opts.OpensPerSecond))
	}
	leave, err := s.enter(caller.Name)
	if err != nil {
		return err
	}
	defer leave()
	bound := binding{}
	bound.now.Store(&caller.Caller)
	// A worker has at most as many jobs in flight as it has slots, plus any jobs that have since been handed back.
	sending := make(chan *remotepb.Assignment, 4*max(1, min(int(m.GetSlots()), 1000)))
	o := host.Options{
		ID: m.GetWorkerId(), Name: m.GetName(), Version: m.GetVersion(), Owner: caller.Name, Kinds: kinds, Lane: bound.lane, Slots: int(m.GetSlots()),
		Send: func(a engine.Assignment) error {
			select {
			case sending <- assignment(a):
				return nil
			default:
				return errors.New("the worker does not read its stream")
			}
		},
	}
	nudge := routine.NewSignal()
	if m.GetNudges() {
		o.Nudge = func() {
			nudge.Set()
		}
	}
	for _, r := range m.GetRunning() {
		o.Running = append(o.Running, claim(r.GetJobId(), r.GetFence(), r.GetToken()))
	}
	session, err := s.host.Receive(ctx, o)
	if err != nil {
		return callError(ctx, err)
	}
	send := func(m *remotepb.Assignment) error {
		caller.until(time.Now().Add(s.opts.SendWithin))
		defer caller.until(time.Time{})
		return out.Send(m)
	}
	if err := send(nil); err != nil { // sending the headers tells the worker that it is connected
		return err
	}
	recheck := time.NewTicker(min(s.opts.NudgeInterval, recheckInterval))
	defer recheck.Stop()
	for nudged := time.Now(); ; {
		select {
		case now := <-recheck.C:
			if err := bound.reauthenticate(caller, kinds); err != nil {
				return err
			}
			if o.Nudge != nil && now.Sub(nudged) > s.opts.NudgeInterval-recheckInterval/2 { // on the nearest check
				nudged = now
				o.Nudge() // keeps proxies from closing an idle stream
			}
		case a := <-sending:
			if err := send(a); err != nil {
				return err
			}
		case <-nudge:
			if err := send(&remotepb.Assignment{}); err != nil {
				return err
			}
		case <-session.Over():
			return callError(ctx, session.Why())
		case <-session.Stopped():
			select {
			case <-session.Over():
				return callError(ctx, session.Why())
			default:
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return connect.NewError(connect.CodeUnavailable, errors.New("the stream ended: reopen it unless the worker is stopping"))
		}
	}
}

// binding holds the permissions that a worker's principal had at the last check.
type binding struct{ now atomic.Pointer[Caller] }

func (b *binding) lane(name string) bool {
	may := b.now.Load().Lane
	return may == nil || may(name)
}

// reauthenticate rechecks a stream's principal. It returns an error if the principal may no longer use the stream. If the authentication
// service is unavailable, the stream continues.
func (b *binding) reauthenticate(by sender, kinds []engine.RemoteKind) error {
	caller, err := by.again()
	switch {
	case err != nil && connect.CodeOf(err) == connect.CodeUnavailable:
		return nil
	case err != nil:
		return err
	case caller.Name != by.Name:
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("forbidden: the worker belongs to %s", by.Name))
	}
	for _, k := range kinds {
		if err := caller.mayRun(k.Name); err != nil {
			return err
		}
	}
	b.now.Store(&caller)
	return nil
}

// mayRun returns an error for a kind that the caller may not run.
func (c Caller) mayRun(kind string) error {
	if c.Kind == nil || c.Kind(kind) {
		return nil
	}
	why := fmt.Sprintf("%s may not run jobs of the kind %q", c.Name, truncate(kind))
	if c.Refused != nil {
		c.Refused(why)
	}
	return connect.NewError(connect.CodePermissionDenied, errors.New("forbidden: "+why))
}

// kindsOf returns the kinds whose jobs are sent to the worker, with their options. These are the kinds that the worker listed as topics or,
// without topics, all kinds that it registered.
func kindsOf(m *remotepb.StreamJobsRequest, caller Caller) (kinds []engine.RemoteKind, err error) {
	topics := m.GetTopics()
	known := map[string]engine.RemoteKind{}
	for _, k := range m.GetKinds() {
		known[k.GetName()] = kind(k)
		if len(m.GetTopics()) == 0 {
			topics = append(topics, k.GetName())
		}
	}
	slices.Sort(topics)
	for _, name := range slices.Compact(topics) {
		if err := caller.mayRun(name); err != nil {
			return nil, err
		}
		k := known[name]
		k.Name = name
		kinds = append(kinds, k)
	}
	return kinds, nil
}

func kind(k *remotepb.Kind) engine.RemoteKind {
	kind := engine.RemoteKind{Name: k.GetName(), MaxAttempts: int(k.GetMaxAttempts()), MaxCrashes: int(k.GetMaxCrashes())}
	if k.Timeout != nil {
		timeout := k.GetTimeout().AsDuration()
		kind.Timeout = &timeout
	}
	if k.InactivityTimeout != nil {
		after := k.GetInactivityTimeout().AsDuration()
		kind.InactivityTimeout = &after
	}
	if b := k.GetBackoff(); b != nil {
		kind.Backoff = &job.Backoff{Base: b.GetFirst().AsDuration(), Cap: b.GetMost().AsDuration()}
	}
	return kind
}

// #nosec G115 -- small numbers that came from columns of 32 bits
func assignment(a engine.Assignment) *remotepb.Assignment {
	m := &remotepb.Assignment{
		JobId: a.ID, Fence: a.Fence, Attempt: int32(a.Attempt), Kind: a.Kind, Args: a.Args, Lane: a.Lane, Subject: a.Subject, Key: a.Key, Token: a.Token,
		Priority: int32(a.Priority), Crashes: int32(a.Crashes), PipelineId: a.PipelineID, Step: int32(a.Step),
		ClaimedAt: timestamppb.New(a.ClaimedAt), Path: a.Path, Checkpoint: a.Checkpoint, Snoozes: int32(a.Snoozes), Traceparent: a.Trace,
		MaxAttempts: int32(a.AttemptLimit), CreatedAt: timestamppb.New(a.CreatedAt), Submitter: a.Submitter,
	}
	if a.ParentID != nil {
		m.ParentId = *a.ParentID
	}
	if !a.Deadline.IsZero() {
		m.Deadline = timestamppb.New(a.Deadline)
		m.TimeLeft = durationpb.New(max(time.Until(a.Deadline), 0))
	}
	return m
}

func claim(id, fence int64, token []byte) host.Claim {
	return host.Claim{ID: id, Fence: fence, Token: token}
}
