package identity

import (
	"errors"
	"sync"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// Holders are the goroutines that run a function in a transaction on the host's pool. If such a function waited for a second connection, it
// would wait for itself once all connections are in use.
type Holders struct {
	of sync.Map // goroutine → run that locks its lease in the transaction, or nil for [Services.HostTx]
}

// ErrOpen is returned when a function that runs in a transaction starts another one on the same pool.
var ErrOpen = errors.New("a transaction is open: write in it, and pass the checkpoint to Job.Tx")

// Inside calls a function that writes in a transaction on the host's pool. The transaction locks the run's lease, unless run is nil.
func (h *Holders) Inside(run any, write func() error) error {
	by := routine.Goroutine()
	h.of.Store(by, run)
	defer h.of.Delete(by)
	return write()
}

// IsInside reports whether its caller runs within Inside.
func (h *Holders) IsInside() bool {
	_, is := h.of.Load(routine.Goroutine())
	return is
}

// IsInsideOf reports whether its caller runs in the transaction that locks the lease of run, where waiting for the lease would deadlock.
func (h *Holders) IsInsideOf(run any) bool {
	by, is := h.of.Load(routine.Goroutine())
	return is && by == run
}
