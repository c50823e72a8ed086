package torture

import (
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// RecordFault records a fault after it has been undone.
func (w *World) RecordFault(f history.Fault) {
	if err := w.Faults.Write(f); err != nil {
		w.fail(err)
	}
}

// Called records a client's call after it has ended.
func (w *World) Called(c history.Call) {
	if err := w.Calls.Write(c); err != nil {
		w.fail(err)
	}
}

// noteFault counts a fault that has been recorded.
func (w *World) noteFault(one any) {
	f, ok := one.(history.Fault)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded++
	if w.lastFault = f.Fault + " " + f.Verb; f.Pod != "" {
		w.lastFault += " " + f.Pod
	}
}

// noteCall counts a recorded submission.
func (w *World) noteCall(one any) {
	c, ok := one.(history.Call)
	if !ok || c.Verb != "submit" || c.Outcome != history.OK {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.submitted++
}

// fail records that the torture test itself has failed, which ends the run.
func (w *World) fail(err error) {
	w.log.Error("the torture test itself failed", "err", err)
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

// Progress describes how far a run has come.
type Progress struct {
	Phase     string        // current activity, in words for the user
	Elapsed   time.Duration // time since the phase began
	Total     time.Duration // length or time limit of the phase, or 0 if unknown
	Faults    int           // recorded faults, and tests of the idle fleet
	Jobs      int           // jobs that were submitted successfully
	LastFault string
}

// Progress returns how far the run has come.
func (w *World) Progress() Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Progress{Phase: w.phase, Elapsed: time.Since(w.phaseBegan), Total: w.phaseTotal, Faults: w.recorded, Jobs: w.submitted, LastFault: w.lastFault}
}

// enter begins a phase. total is its length or time limit, or 0 if unknown.
func (w *World) enter(phase string, total time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase, w.phaseBegan, w.phaseTotal = phase, time.Now(), total
}
