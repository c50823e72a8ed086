package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// maxListed is the maximum number of jobs in a heartbeat. It is twice the maximum number of slots, because each slot may have both a
// running job and a finished job whose report is still in flight.
const maxListed = 2000

// Heartbeat implements [remotepb.WorkersHandler].
func (s *server) Heartbeat(ctx context.Context, in *connect.Request[remotepb.HeartbeatRequest]) (*connect.Response[remotepb.HeartbeatResponse], error) {
	m := in.Msg
	if len(m.GetRunning()) > maxListed {
		return nil, callError(ctx, fmt.Errorf("%w: heartbeat: %d running jobs, want at most %d", job.ErrTooLarge, len(m.GetRunning()), maxListed))
	}
	beat := host.Beat{Draining: m.GetDraining(), Leaving: m.GetLeaving()}
	for _, r := range m.GetRunning() {
		l := host.Listed{Claim: claim(r.GetJobId(), r.GetFence(), r.GetToken())}
		if p := r.GetProgress(); p != nil {
			l.Progress = &job.Progress{Done: p.Done, Total: p.Total, Message: p.Message}
		}
		beat.Running = append(beat.Running, l)
	}
	verdicts, err := s.host.Heartbeat(ctx, m.GetWorkerId(), senderOf(ctx).Name, beat)
	if err != nil {
		return nil, callError(ctx, err)
	}
	lease, every := s.host.Times()
	out := &remotepb.HeartbeatResponse{Lease: durationpb.New(lease), HeartbeatInterval: durationpb.New(every), Pod: s.host.PodName()}
	for _, v := range verdicts {
		out.Verdicts = append(out.Verdicts, verdict(v))
	}
	return connect.NewResponse(out), nil
}

func verdict(v host.Verdict) *remotepb.JobVerdict {
	m := &remotepb.JobVerdict{JobId: v.ID, Fence: v.Fence, Verdict: remotepb.JobVerdict_VERDICT_OK, Cause: cause(v.Cause), StackRequested: v.Stack}
	switch {
	case v.Lost:
		m.Verdict = remotepb.JobVerdict_VERDICT_LOST
	case v.Cause != nil:
		m.Verdict = remotepb.JobVerdict_VERDICT_CANCEL
	}
	return m
}

func cause(err error) remotepb.JobVerdict_Cause {
	if errors.Is(err, job.ErrGone) { // which also matches ErrLeaseLost
		return remotepb.JobVerdict_CAUSE_GONE
	}
	for is, m := range map[error]remotepb.JobVerdict_Cause{
		job.ErrCancelled: remotepb.JobVerdict_CAUSE_CANCELLED, job.ErrForceCancelled: remotepb.JobVerdict_CAUSE_FORCE_CANCELLED, job.ErrTimeout: remotepb.JobVerdict_CAUSE_TIMEOUT,
		job.ErrInactive: remotepb.JobVerdict_CAUSE_STALE, job.ErrDeadline: remotepb.JobVerdict_CAUSE_DEADLINE, job.ErrShutdown: remotepb.JobVerdict_CAUSE_SHUTDOWN,
		job.ErrLeaseLost: remotepb.JobVerdict_CAUSE_LEASE_LOST,
	} {
		if errors.Is(err, is) {
			return m
		}
	}
	return remotepb.JobVerdict_CAUSE_UNSPECIFIED
}

// ReportResult implements [remotepb.WorkersHandler].
func (s *server) ReportResult(ctx context.Context, in *connect.Request[remotepb.ReportResultRequest]) (*connect.Response[remotepb.ReportResultResponse], error) {
	m := in.Msg
	report, err := reportOf(m)
	if err != nil {
		return nil, err
	}
	report.Claim = claim(m.GetJobId(), m.GetFence(), m.GetToken())
	duplicate, err := s.host.Report(ctx, m.GetWorkerId(), senderOf(ctx).Name, report)
	if err != nil {
		return nil, callError(ctx, err)
	}
	status := remotepb.ReportResultResponse_STATUS_ACCEPTED
	if duplicate {
		status = remotepb.ReportResultResponse_STATUS_DUPLICATE
	}
	return connect.NewResponse(&remotepb.ReportResultResponse{Status: status}), nil
}

// Note implements [remotepb.WorkersHandler].
func (s *server) Note(ctx context.Context, in *connect.Request[remotepb.NoteRequest]) (*connect.Response[remotepb.NoteResponse], error) {
	m, owner := in.Msg, senderOf(ctx).Name
	about := claim(m.GetJobId(), m.GetFence(), m.GetToken())
	var err error
	switch is := m.GetNote().(type) {
	case *remotepb.NoteRequest_Event:
		err = s.host.Emit(ctx, m.GetWorkerId(), owner, about, is.Event.GetName(), is.Event.GetLevel(), is.Event.GetMessage(), is.Event.GetFields())
	case *remotepb.NoteRequest_Checkpoint:
		err = s.host.Checkpoint(ctx, m.GetWorkerId(), owner, about, is.Checkpoint)
	case *remotepb.NoteRequest_Stack:
		err = s.host.Stack(ctx, m.GetWorkerId(), owner, about, is.Stack)
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("invalid: empty note"))
	}
	if err != nil {
		return nil, callError(ctx, err)
	}
	return connect.NewResponse(&remotepb.NoteResponse{}), nil
}

// branchBytes is the approximate size of a page of branches.
const branchBytes = 2 << 20

// Read implements [remotepb.WorkersHandler].
func (s *server) Read(ctx context.Context, in *connect.Request[remotepb.ReadRequest]) (*connect.Response[remotepb.ReadResponse], error) {
	m, owner := in.Msg, senderOf(ctx).Name
	about := claim(m.GetJobId(), m.GetFence(), m.GetToken())
	out := &remotepb.ReadResponse{}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var err error
	switch is := m.GetWhat().(type) {
	case *remotepb.ReadRequest_ParentResult_:
		out.Value, err = s.host.PreviousResult(ctx, m.GetWorkerId(), owner, about)
	case *remotepb.ReadRequest_Failure_:
		var failure job.Failure
		if failure, err = s.host.Failure(ctx, m.GetWorkerId(), owner, about); err == nil {
			out.Value, err = json.Marshal(failure)
		}
	case *remotepb.ReadRequest_CompletionToken_:
		var token string
		token, err = s.host.Token(ctx, m.GetWorkerId(), owner, about)
		out.Value = []byte(token)
	case *remotepb.ReadRequest_Branches_:
		var page []job.Branch
		page, out.More, err = s.host.Branches(ctx, m.GetWorkerId(), owner, about, int(is.Branches.GetAfter()), branchBytes)
		for i := range page {
			b := &page[i]
			out.Branches = append(out.Branches, &remotepb.Branch{
				No: int32(b.No), JobId: b.JobID, Kind: b.Kind, Subject: b.Subject, Part: b.Part, State: string(b.State), Outcome: string(b.Outcome), // #nosec G115 -- at most 10,000
				Reason: string(b.Reason), Error: b.Error, Result: b.JSON,
			})
		}
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("invalid: empty read"))
	}
	if err != nil {
		return nil, callError(ctx, err)
	}
	return connect.NewResponse(out), nil
}
