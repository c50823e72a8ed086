package worker

import (
	"context"
	"errors"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// A worker whose lease ran out begins anew, but handlers that ignore the end of their context are still there: strays. What they take
// of the machine they go on taking, so that each counts against the slots that pods are told of until it has ended.

// errRegained ends a stream, so that the next one is opened with more slots.
var errRegained = errors.New("a handler of an earlier session ended: its slot is free")

// strays is how many handlers still run that the worker had before it began anew.
func (w *Worker) strays() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		if t.boot != w.id {
			n++
		}
	}
	return n
}

// waitForASlot waits while strays take all slots: no pod receives a worker that has none.
func (w *Worker) waitForASlot(ctx context.Context) error {
	for warned := false; w.strays() >= w.opts.Slots; warned = true {
		if !warned {
			w.log.WarnContext(ctx, "all slots are held by handlers that ignore their cancelled contexts", telemetry.Slots, w.opts.Slots)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.freed:
		}
	}
	return nil
}

// regain has the pods told of a slot that a stray has freed.
func (w *Worker) regain() {
	w.freed.Set()
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut != nil {
		cut(errRegained)
	}
}
