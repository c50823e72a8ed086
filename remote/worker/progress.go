package worker

import (
	"time"

	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// A handler's notes of its progress go with heartbeats. The last one is told before the report, which has none: else a bar would end where
// the heartbeat before it was.

// restWithin bounds how long a report waits for that.
const restWithin = time.Second

// takeProgress takes the news since the last heartbeat, for one that is about to be sent.
func (t *task) takeProgress() *remotepb.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.telling, t.progress = t.progress, nil
	return t.telling
}

// told says whether that heartbeat was answered: if not, the next one has its news, unless there are newer ones.
func (t *task) told(answered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was := t.telling; !answered && was != nil {
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
	t.telling = nil
}

func (t *task) hasNews() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress != nil || t.telling != nil
}

// tellRest waits until a heartbeat has told the last of what the handler noted.
func (t *task) tellRest() {
	for over := time.NewTimer(restWithin); ; {
		beaten := t.w.nextBeat()
		if !t.hasNews() {
			over.Stop()
			return
		}
		t.w.hurry()
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

// nextBeat is closed when the heartbeat that is under way, or the next one, is over.
func (w *Worker) nextBeat() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beaten == nil {
		w.beaten = make(chan struct{})
	}
	return w.beaten
}

// wasBeaten tells those who wait for a heartbeat that one is over.
func (w *Worker) wasBeaten(answered bool) {
	for _, t := range w.list() {
		t.told(answered)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beaten != nil {
		close(w.beaten)
		w.beaten = nil
	}
}
