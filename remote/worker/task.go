package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

type key struct{ id, fence int64 }

// task is a job on the worker, from its arrival until its report is acknowledged.
type task struct {
	w      *Worker
	podID  string
	m      *remotepb.Assignment
	keeps  bool // the handler keeps running while no pod can be reached
	ctx    context.Context
	cancel context.CancelCauseFunc
	once   sync.Once
	gone   chan struct{} // closed when the worker loses the job or gives it up

	returned  atomic.Bool   // the handler has returned; only the report remains
	goroutine atomic.Uint64 // number of the goroutine that is running the handler, or 0

	mu       sync.Mutex
	progress *remotepb.Progress // progress that has not been sent yet
	sending  *remotepb.Progress // progress in the current heartbeat
}

// take starts a job and immediately acknowledges its arrival.
func (w *Worker) take(m *remotepb.Assignment) {
	w.mu.Lock()
	k := key{m.GetJobId(), m.GetFence()}
	if w.tasks[k] != nil || w.drains {
		w.mu.Unlock()
		return
	}
	t := &task{w: w, podID: w.id, m: m, keeps: w.keeps[m.GetKind()], gone: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	w.tasks[k] = t
	w.working.Add(1)
	w.mu.Unlock()
	w.heartbeatNow()
	go t.run()
}

func (w *Worker) find(k key) *task {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tasks[k]
}

func (w *Worker) list() []*task {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*task, 0, len(w.tasks))
	for _, t := range w.tasks {
		list = append(list, t)
	}
	return list
}

// lose cancels the job's handler because the worker no longer holds the job. Nothing is reported.
func (t *task) lose(why error) {
	t.once.Do(func() { close(t.gone) })
	t.cancel(why)
}

func (t *task) isGone() bool {
	select {
	case <-t.gone:
		return true
	default:
		return false
	}
}

// abandon hands back a job whose handler ignores its cancelled context.
func (t *task) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	m := t.report()
	m.Outcome = &remotepb.ReportResultRequest_HandedBack{HandedBack: &remotepb.HandedBack{Why: "the worker is shutting down"}}
	_, _ = t.w.servers.now().client.ReportResult(ctx, connect.NewRequest(m))
	t.lose(job.ErrShutdown)
}

// run runs the job's handler and reports its outcome.
func (t *task) run() {
	defer t.w.working.Done()
	defer t.end()
	began := time.Now()
	t.w.log.DebugContext(t.ctx, "job started", t.attrs()...)
	o, err := t.perform()
	t.returned.Store(true)
	t.logReturn(began, err)
	t.flushProgress()
	m := t.report()
	t.fill(m, o, err)
	t.send(m)
}

// perform calls the handler in one of the worker's slots. The pod sends a job only if a slot is free, but the handler of a job that was
// stopped or has moved to another pod may still occupy it.
func (t *task) perform() (*work.Outcome, error) {
	a := assignment(t.m) // the timeout starts here, so it includes the wait for a slot
	select {
	case t.w.slots <- struct{}{}:
	case <-t.ctx.Done():
		return nil, context.Cause(t.ctx)
	}
	defer func() { <-t.w.slots }()
	if t.ctx.Err() != nil { // the job ended while it was waiting for the slot
		return nil, context.Cause(t.ctx)
	}
	a.Goroutine = &t.goroutine
	return engine.Perform(t.ctx, t.w.engine, t.podID, a, &remoteWriter{t})
}

// sendStack sends the handler's stack to a pod. If the call fails, the reply to the next heartbeat requests the stack again.
func (t *task) sendStack() {
	stack := engine.StackOf(&t.goroutine)
	if stack == "" {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	m := (&remoteWriter{t}).note()
	m.Note = &remotepb.NoteRequest_Stack{Stack: stack}
	if _, err := t.w.servers.now().client.Note(ctx, connect.NewRequest(m)); err != nil {
		t.w.log.DebugContext(ctx, "could not send the stack of a handler, waiting for the next request", append(t.attrs(), telemetry.Err, err)...)
	}
}

// attrs returns the attributes that identify the job in the log.
func (t *task) attrs() []any {
	return []any{telemetry.JobID, t.m.GetJobId(), telemetry.Kind, t.m.GetKind(), telemetry.Attempt, t.m.GetAttempt(), telemetry.Fence, t.m.GetFence(), telemetry.Lane, t.m.GetLane()}
}

// logReturn logs that a handler has returned. The pod determines and logs the job's outcome.
func (t *task) logReturn(began time.Time, err error) {
	attrs := append(t.attrs(), telemetry.Took, time.Since(began).Round(time.Millisecond))
	switch {
	case err == nil:
		t.w.log.DebugContext(t.ctx, "handler returned", attrs...)
	case t.ctx.Err() != nil:
		t.w.log.InfoContext(t.ctx, "handler ended after its cancellation", append(attrs, telemetry.Cause, context.Cause(t.ctx))...)
	default:
		t.w.log.WarnContext(t.ctx, "handler returned an error", append(attrs, telemetry.Err, cut(err.Error()))...)
	}
}

// end removes the task. If the task was started before the worker's restart, the worker can now offer its slot to the pods.
func (t *task) end() {
	t.w.mu.Lock()
	delete(t.w.tasks, key{t.m.GetJobId(), t.m.GetFence()})
	leftover := t.podID != t.w.id
	t.w.mu.Unlock()
	t.cancel(nil)
	if leftover {
		t.w.offerFreedSlot()
	}
	t.w.heartbeatNow()
}

func (t *task) report() *remotepb.ReportResultRequest {
	return &remotepb.ReportResultRequest{WorkerId: t.podID, JobId: t.m.GetJobId(), Fence: t.m.GetFence(), Token: t.m.GetToken()}
}

// send sends the report until a pod acknowledges it. Repeating a report has no further effect. If a heartbeat declares the claim lost, this
// very report may be the cause, so send lets the call in flight finish.
func (t *task) send(m *remotepb.ReportResultRequest) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-t.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	for backoff := newBackoff(); !t.isGone(); {
		asking, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		_, err := t.w.servers.now().client.ReportResult(asking, connect.NewRequest(m))
		done()
		switch connect.CodeOf(err) {
		case connect.CodeFailedPrecondition, connect.CodePermissionDenied, connect.CodeAborted, connect.CodeNotFound:
			t.w.log.WarnContext(ctx, "result refused", append(t.attrs(), telemetry.Err, err)...)
			return
		case connect.CodeInvalidArgument, connect.CodeResourceExhausted, connect.CodeUnimplemented, connect.CodeInternal:
			if _, failed := m.GetOutcome().(*remotepb.ReportResultRequest_Failure); !failed {
				m.Outcome = &remotepb.ReportResultRequest_Failure{Failure: &remotepb.Failure{Message: cut("the handler's outcome was refused: " + err.Error()), Permanent: true}}
			}
		}
		if err == nil {
			return
		}
		t.w.log.DebugContext(ctx, "report failed, sending it again", append(t.attrs(), telemetry.Err, err)...)
		if !backoff.Wait(ctx) {
			return
		}
	}
}

func assignment(m *remotepb.Assignment) engine.Assignment {
	a := engine.Assignment{Token: m.GetToken(), AttemptLimit: int(m.GetMaxAttempts())}
	a.ID, a.Fence, a.PipelineID, a.Step = m.GetJobId(), m.GetFence(), m.GetPipelineId(), int(m.GetStep())
	a.Kind, a.Lane, a.Subject, a.Key, a.Args, a.Priority = m.GetKind(), m.GetLane(), m.GetSubject(), m.GetKey(), m.GetArgs(), int(m.GetPriority())
	a.Attempt, a.Crashes, a.Snoozes, a.Checkpoint = int(m.GetAttempt()), int(m.GetCrashes()), int(m.GetSnoozes()), m.GetCheckpoint()
	a.ClaimedAt, a.Path, a.Trace, a.Submitter = m.GetClaimedAt().AsTime(), m.GetPath(), m.GetTraceparent(), m.GetSubmitter()
	if id := m.GetParentId(); id != 0 {
		a.ParentID = &id
	}
	if m.CreatedAt != nil { // pods with an earlier version do not send it
		a.CreatedAt = m.GetCreatedAt().AsTime()
	}
	if m.TimeLeft != nil { // on this machine's clock, which may differ from the pod's
		a.Deadline = time.Now().Add(m.GetTimeLeft().AsDuration())
	}
	return a
}
