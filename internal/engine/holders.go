package engine

import (
	"errors"
	"sync"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// holders are the goroutines that run a function in a transaction on the host's pool. If such a function waited for a second connection, it
// would wait for itself once all connections are in use.
type holders struct {
	of sync.Map // goroutine → *Run that locks its lease in the transaction, or nil for [Services.HostTx]
}

// ErrOpen is returned when a function that runs in a transaction starts another one on the same pool.
var ErrOpen = errors.New("a transaction is open: write in it, and pass the checkpoint to Job.Tx")

// inside calls a function that writes in a transaction on the host's pool. The transaction locks the run's lease, unless run is nil.
func (h *holders) inside(run *Run, write func() error) error {
	by := routine.Goroutine()
	h.of.Store(by, run)
	defer h.of.Delete(by)
	return write()
}

// isInside reports whether its caller runs within inside.
func (h *holders) isInside() bool {
	_, is := h.of.Load(routine.Goroutine())
	return is
}

// isInsideOf reports whether its caller runs in the transaction that locks the lease of run, where waiting for the lease would deadlock.
func (h *holders) isInsideOf(run *Run) bool {
	by, is := h.of.Load(routine.Goroutine())
	return is && by == run
}
