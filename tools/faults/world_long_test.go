//go:build long

package faults

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// ended returns the number of finished jobs.
func (w *world) ended() int { return read[int](w, "select count(*) from trapeze.done") }

// waitMore waits until the number of finished jobs exceeds before+more.
func (w *world) waitMore(atMost time.Duration, before, more int) {
	w.t.Helper()
	pgtest.WaitFor(w.t, atMost, "work goes on", func() bool { return w.ended() > before+more })
}
