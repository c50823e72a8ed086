package worker

import (
	"context"
	"errors"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// A worker whose lease has expired restarts with a new ID, but handlers that ignore their cancelled contexts keep running. These leftover
// handlers still use the machine's resources, so until they return, each of them takes up one of the slots that the worker offers to pods.

// errSlotFreed ends a stream, so that the next one offers more slots.
var errSlotFreed = errors.New("a handler from an earlier session returned: its slot is free")

// leftovers returns the number of handlers that were started before the worker's restart and are still running.
func (w *Worker) leftovers() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		if t.podID != w.id {
			n++
		}
	}
	return n
}

// waitForASlot blocks while leftover handlers occupy all slots, because pods reject a worker that offers none.
func (w *Worker) waitForASlot(ctx context.Context) error {
	for warned := false; w.leftovers() >= w.opts.Slots; warned = true {
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

// offerFreedSlot ends the stream after a leftover handler has returned, so that the next stream offers the freed slot to the pods.
func (w *Worker) offerFreedSlot() {
	w.freed.Set()
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut != nil {
		cut(errSlotFreed)
	}
}
