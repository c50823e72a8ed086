package store_test

import (
	"testing"

	"github.com/trapeze-run/trapeze/job"
)

// If the last scheduled sweep for a closed pod's jobs skips a locked row, another sweep must follow.
func TestLastSweepLockedRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(plain)[0]
	w.claimOne(a)
	// The pod left while no other pod was running, and the next pod starts 15 minutes later.
	w.exec(`update trapeze.pods set closed_at = now() - interval '15 minutes', closed = 'left' where id = $1`, a)
	release := w.freeze(`select from trapeze.live where id = $1 for update`, id)
	w.recover(b, 100)
	release(true)
	w.recover(b, 100)
	w.is.Equal(w.at(id).State, job.Pending)
}
