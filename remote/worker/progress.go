package worker

import (
	"time"

	"github.com/trapeze-run/trapeze/remote/remotepb"
)

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
