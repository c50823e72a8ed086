package torture

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// Struck writes down a fault, when it has been healed.
func (w *World) Struck(f history.Fault) {
	if err := w.Faults.Write(f); err != nil {
		w.fail(err)
	}
}

// Called writes down a client's call, when it has ended.
func (w *World) Called(c history.Call) {
	if err := w.Calls.Write(c); err != nil {
		w.fail(err)
	}
}

// noteFault counts a fault that was written down.
func (w *World) noteFault(one any) {
	f, ok := one.(history.Fault)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.struck++
	if w.lastFault = f.Fault + " " + f.Verb; f.Pod != "" {
		w.lastFault += " " + f.Pod
	}
}

// noteCall counts a submission that was written down.
func (w *World) noteCall(one any) {
	c, ok := one.(history.Call)
	if !ok || c.Verb != "submit" || c.Outcome != history.OK {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.submitted++
}

// fail records that the torture itself is broken, which ends the run.
func (w *World) fail(err error) {
	w.log.Error("the torture is broken", "err", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.broken = err
	}
}

func (w *World) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

// Progress is how far a run is.
type Progress struct {
	Phase     string        // what is being done, for people
	Elapsed   time.Duration // since the phase began
	Total     time.Duration // its length, or what it may take at most; 0: not known
	Faults    int           // done and healed
	Jobs      int           // whose submission was answered
	LastFault string
}

// Progress tells how far the run is.
func (w *World) Progress() Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Progress{Phase: w.phase, Elapsed: time.Since(w.phaseBegan), Total: w.phaseTotal, Faults: w.struck, Jobs: w.submitted, LastFault: w.lastFault}
}

// enter begins a phase that takes, or may take at most, total; 0: nobody knows.
func (w *World) enter(phase string, total time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase, w.phaseBegan, w.phaseTotal = phase, time.Now(), total
}
