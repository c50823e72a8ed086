package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// remoteWriter is the [work.Writer] of a job on a worker. It sends all writes to a pod.
type remoteWriter struct{ *task }

// Tx implements [work.Writer]. It always fails, because a worker has no database.
func (f *remoteWriter) Tx(context.Context, work.TxFunc, func() (json.RawMessage, error)) error {
	return job.Permanent(fmt.Errorf("write under the lease of job %d: %w", f.m.GetJobId(), runner.ErrNoDatabase))
}

// Write implements [work.Writer]. It always fails, because a worker has no database.
func (f *remoteWriter) Write(ctx context.Context, _ work.Writes, _ json.RawMessage) error {
	return f.Tx(ctx, nil, nil)
}

// Progress records progress that the next heartbeat delivers.
func (f *remoteWriter) Progress(p job.Progress) {
	f.mu.Lock()
	if f.progress == nil {
		f.progress = &remotepb.Progress{}
	}
	if p.Done != nil {
		f.progress.Done, f.progress.Total = p.Done, p.Total
	}
	if p.Message != nil {
		f.progress.Message = p.Message
	}
	f.mu.Unlock()
	f.w.noted.Set()
}

// Emit retries until a pod replies. Because an event must not be written twice, Emit retries only while it is certain that the event was
// not written. If the reply is lost, Emit returns [job.ErrOutcomeUnknown].
func (f *remoteWriter) Emit(ctx context.Context, event, level, message string, fields json.RawMessage) error {
	m := f.note()
	m.Note = &remotepb.NoteRequest_Event{Event: &remotepb.Event{Name: event, Level: level, Message: message, Fields: fields}}
	return f.retry(ctx, func(ctx context.Context) error {
		var sent atomic.Bool
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}
		_, err := f.w.servers.now().client.Note(httptrace.WithClientTrace(ctx, trace), connect.NewRequest(m))
		if err != nil && sent.Load() && !answered(err) {
			return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
		}
		return err
	})
}

// answered reports whether err is a reply from a pod that guarantees that nothing was written.
func answered(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnknown && !strings.Contains(err.Error(), "outcome_unknown")
}

// Checkpoint retries until a pod replies. Storing the same checkpoint twice is harmless.
func (f *remoteWriter) Checkpoint(ctx context.Context, v json.RawMessage) error {
	m := f.note()
	m.Note = &remotepb.NoteRequest_Checkpoint{Checkpoint: v}
	return f.retry(ctx, func(ctx context.Context) error {
		_, err := f.w.servers.now().client.Note(ctx, connect.NewRequest(m))
		return err
	})
}

func (f *remoteWriter) note() *remotepb.NoteRequest {
	return &remotepb.NoteRequest{WorkerId: f.podID, JobId: f.m.GetJobId(), Fence: f.m.GetFence(), Token: f.m.GetToken()}
}

// read retries a request until a pod replies.
func (f *remoteWriter) read(ctx context.Context, what func(*remotepb.ReadRequest)) (out *remotepb.ReadResponse, err error) {
	m := &remotepb.ReadRequest{WorkerId: f.podID, JobId: f.m.GetJobId(), Fence: f.m.GetFence(), Token: f.m.GetToken()}
	what(m)
	err = f.retry(ctx, func(ctx context.Context) error {
		in, err := f.w.servers.now().client.Read(ctx, connect.NewRequest(m))
		if err == nil {
			out = in.Msg
		}
		return err
	})
	return out, err
}

// retry repeats a call until a pod replies, ctx is cancelled, or the call returns [job.ErrOutcomeUnknown]. A call that is not idempotent
// must return [job.ErrOutcomeUnknown] if its data may have been written.
func (f *remoteWriter) retry(ctx context.Context, call func(ctx context.Context) error) error {
	for backoff := newBackoff(); ; {
		asking, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := call(asking)
		cancel()
		switch connect.CodeOf(err) {
		case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeUnknown:
			if err != nil && !errors.Is(err, job.ErrOutcomeUnknown) && backoff.Wait(ctx) {
				continue
			}
		}
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err = jobError(err); errors.Is(err, job.ErrGone) {
			f.lose(job.ErrGone)
		}
		return err
	}
}

// jobError converts an error from a pod to the corresponding error of package job.
func jobError(err error) error {
	if err == nil {
		return nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition:
		if strings.Contains(err.Error(), job.ErrGone.Error()) {
			return fmt.Errorf("%w: %w", job.ErrGone, err)
		}
		return fmt.Errorf("%w: %w", job.ErrLeaseLost, err)
	case connect.CodeAborted, connect.CodePermissionDenied:
		return fmt.Errorf("%w: %w", job.ErrLeaseLost, err)
	case connect.CodeNotFound:
		return fmt.Errorf("%w: %w", job.ErrNotFound, err)
	case connect.CodeResourceExhausted:
		return fmt.Errorf("%w: %w", job.ErrTooLarge, err)
	}
	return err
}

// PreviousResult implements [work.Writer].
func (f *remoteWriter) PreviousResult(ctx context.Context) (json.RawMessage, error) {
	out, err := f.read(ctx, func(m *remotepb.ReadRequest) {
		m.What = &remotepb.ReadRequest_ParentResult_{ParentResult: &remotepb.ReadRequest_ParentResult{}}
	})
	return out.GetValue(), err
}

// Failure implements [work.Writer].
func (f *remoteWriter) Failure(ctx context.Context) (failure job.Failure, err error) {
	out, err := f.read(ctx, func(m *remotepb.ReadRequest) {
		m.What = &remotepb.ReadRequest_Failure_{Failure: &remotepb.ReadRequest_Failure{}}
	})
	if err == nil {
		err = json.Unmarshal(out.GetValue(), &failure)
	}
	return failure, err
}

// CompletionToken implements [work.Writer].
func (f *remoteWriter) CompletionToken(ctx context.Context) (string, error) {
	out, err := f.read(ctx, func(m *remotepb.ReadRequest) {
		m.What = &remotepb.ReadRequest_CompletionToken_{CompletionToken: &remotepb.ReadRequest_CompletionToken{}}
	})
	return string(out.GetValue()), err
}

// Branches implements [work.Writer].
func (f *remoteWriter) Branches(ctx context.Context) iter.Seq2[job.Branch, error] {
	return func(yield func(job.Branch, error) bool) {
		for read := int32(0); ; {
			out, err := f.read(ctx, func(m *remotepb.ReadRequest) {
				m.What = &remotepb.ReadRequest_Branches_{Branches: &remotepb.ReadRequest_Branches{After: read}}
			})
			if err != nil {
				yield(job.Branch{}, err)
				return
			}
			for _, m := range out.GetBranches() {
				b := job.Branch{
					No: int(m.GetNo()), JobID: m.GetJobId(), Kind: m.GetKind(), Subject: m.GetSubject(), Part: m.GetPart(), State: job.State(m.GetState()),
					Outcome: job.OutcomeStatus(m.GetOutcome()), Reason: job.Reason(m.GetReason()), Error: m.GetError(),
				}
				if len(m.GetResult()) > 0 {
					b.JSON = m.GetResult()
				}
				if read++; !yield(b, nil) {
					return
				}
			}
			if !out.GetMore() {
				return
			}
		}
	}
}

// Heartbeats carry a handler's progress, but reports do not. A task therefore delivers its last progress before it sends the report.
// Otherwise, a progress bar would stop at the value of the previous heartbeat.

// flushWithin limits how long a report waits for the delivery of the last progress.
const flushWithin = time.Second

// takeProgress returns the progress made since the last heartbeat, to be sent with the next one.
func (t *task) takeProgress() *remotepb.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending, t.progress = t.progress, nil
	return t.sending
}

// acknowledgeProgress records whether the heartbeat was acknowledged. If it was not, the next one repeats the progress, unless there is
// newer progress.
func (t *task) acknowledgeProgress(answered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was := t.sending; !answered && was != nil {
		if t.progress == nil {
			t.progress = &remotepb.Progress{}
		}
		if t.progress.Done == nil {
			t.progress.Done, t.progress.Total = was.Done, was.Total
		}
		if t.progress.Message == nil {
			t.progress.Message = was.Message
		}
	}
	t.sending = nil
}

func (t *task) hasNews() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress != nil || t.sending != nil
}

// flushProgress blocks until a heartbeat has delivered the handler's last progress.
func (t *task) flushProgress() {
	for over := time.NewTimer(flushWithin); ; {
		beaten := t.w.nextBeat()
		if !t.hasNews() {
			over.Stop()
			return
		}
		t.w.heartbeatNow()
		select {
		case <-beaten:
		case <-t.gone:
			over.Stop()
			return
		case <-over.C:
			return
		}
	}
}

// nextBeat returns a channel that is closed after the heartbeat in flight or, if there is none, after the next one.
func (w *Worker) nextBeat() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beaten == nil {
		w.beaten = make(chan struct{})
	}
	return w.beaten
}

// heartbeatDone notifies waiting goroutines that a heartbeat has finished.
func (w *Worker) heartbeatDone(answered bool) {
	for _, t := range w.list() {
		t.acknowledgeProgress(answered)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beaten != nil {
		close(w.beaten)
		w.beaten = nil
	}
}
