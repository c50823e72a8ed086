package worker

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// notesEvery is the minimum interval between heartbeats that are sent only to deliver progress.
const notesEvery = 250 * time.Millisecond

// beat sends heartbeats until ctx is cancelled: at the interval that the pods set, as soon as a job has arrived, and shortly after progress
// was reported. It sends one heartbeat at a time, so that they arrive in order.
func (w *Worker) beat(ctx context.Context) {
	var last time.Time
	for {
		w.mu.Lock()
		every := w.every
		w.mu.Unlock()
		timer := time.NewTimer(every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-w.kick:
		case <-w.noted:
			soon := time.NewTimer(notesEvery - time.Since(last))
			select {
			case <-ctx.Done():
			case <-w.kick:
			case <-soon.C:
			}
			soon.Stop()
		}
		timer.Stop()
		last = time.Now()
		w.beatOnce(ctx, last, every)
		w.watchTrust(ctx)
	}
}

func (w *Worker) beatOnce(ctx context.Context, sent time.Time, every time.Duration) {
	// Wait for the reply to a heartbeat in flight. A stopping worker waits only briefly.
	lingering, release := routine.Linger(ctx, time.Second)
	defer release()
	asking, cancel := context.WithTimeout(lingering, max(every, time.Second))
	defer cancel()
	w.mu.Lock()
	id, drains := w.id, w.drains
	w.mu.Unlock()
	out, err := w.servers.now().client.Heartbeat(asking, connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: id, Running: w.running(), Draining: drains}))
	w.heartbeatDone(err == nil)
	if err != nil {
		switch {
		case ctx.Err() != nil: // the worker is stopping, so its row may already be closed
		case isClosed(err) && w.isReceived(id):
			w.restart(err)
		default:
			w.log.DebugContext(ctx, "heartbeat failed", telemetry.Err, err)
		}
		return
	}
	w.mu.Lock()
	lease := out.Msg.GetLease().AsDuration()
	w.every = max(out.Msg.GetHeartbeatInterval().AsDuration(), 50*time.Millisecond)
	received := false
	if w.id == id { // otherwise the reply belongs to the worker's previous ID
		w.trusted = sent.Add(lease - lease/10)
		time.AfterFunc(time.Until(w.trusted), func() { w.watchTrust(ctx) }) // even while the next heartbeat is in flight
		received, w.greets = w.greets, false
	}
	w.mu.Unlock()
	if received {
		w.log.InfoContext(ctx, "accepted by a pod", telemetry.Server, w.servers.now().address, telemetry.Pod, out.Msg.GetPod(), telemetry.PodID, id,
			telemetry.Slots, w.opts.Slots-w.leftovers(), telemetry.Kinds, w.sent(), telemetry.Running, len(w.list()))
	}
	for _, v := range out.Msg.GetVerdicts() {
		t := w.find(key{v.GetJobId(), v.GetFence()})
		if t == nil {
			continue
		}
		switch v.GetVerdict() {
		case remotepb.JobVerdict_VERDICT_LOST:
			if !t.returned.Load() { // otherwise the report arrived first and has been acknowledged
				w.log.WarnContext(ctx, "the job no longer belongs to this worker", append(t.attrs(), telemetry.Cause, cause(v.GetCause()))...)
			}
			t.lose(cause(v.GetCause()))
		case remotepb.JobVerdict_VERDICT_CANCEL:
			t.cancel(cause(v.GetCause()))
		}
		if v.GetStackRequested() {
			go t.sendStack()
		}
	}
}

// isReceived reports whether a pod has replied to the worker under its current ID. Until then its row may not exist yet, which must not be
// mistaken for a closed row.
func (w *Worker) isReceived(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id == id && !w.trusted.IsZero()
}

// watchTrust cancels the handlers if no pod has replied for about the duration of a lease, because the jobs may be running elsewhere by
// then.
func (w *Worker) watchTrust(ctx context.Context) {
	w.mu.Lock()
	over := ctx.Err() == nil && !w.trusted.IsZero() && !time.Now().Before(w.trusted)
	w.mu.Unlock()
	if !over {
		return
	}
	for _, t := range w.list() {
		if !t.keeps && t.ctx.Err() == nil {
			w.log.WarnContext(ctx, "no pod responded within the lease: the handler is cancelled", t.attrs()...)
			t.cancel(job.ErrLeaseLost)
		}
	}
}

// running returns the worker's claims, with the progress made since the last heartbeat.
func (w *Worker) running() (list []*remotepb.Running) {
	id := w.currentID()
	for _, t := range w.list() {
		if t.podID != id {
			continue // the claim belongs to the worker's previous ID
		}
		list = append(list, &remotepb.Running{JobId: t.m.GetJobId(), Fence: t.m.GetFence(), Token: t.m.GetToken(), Progress: t.takeProgress()})
	}
	return list
}

func cause(c remotepb.JobVerdict_Cause) error {
	switch c {
	case remotepb.JobVerdict_CAUSE_CANCELLED:
		return job.ErrCancelled
	case remotepb.JobVerdict_CAUSE_FORCE_CANCELLED:
		return job.ErrForceCancelled
	case remotepb.JobVerdict_CAUSE_TIMEOUT:
		return job.ErrTimeout
	case remotepb.JobVerdict_CAUSE_STALE:
		return job.ErrInactive
	case remotepb.JobVerdict_CAUSE_DEADLINE:
		return job.ErrDeadline
	case remotepb.JobVerdict_CAUSE_SHUTDOWN:
		return job.ErrShutdown
	case remotepb.JobVerdict_CAUSE_GONE:
		return job.ErrGone
	}
	return job.ErrLeaseLost
}
