package identity

import (
	"errors"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// This file tracks claims that this identity may hold without knowing: those of statements in flight, and those whose reply was lost.

// inFlight holds the ids of jobs that a statement in flight may assign to this identity. Such jobs are not orphans.
type inFlight struct {
	mu  sync.Mutex
	ids map[int64]bool
}

func (f *inFlight) Add(id int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids == nil {
		f.ids = map[int64]bool{}
	}
	f.ids[id] = true
}

func (f *inFlight) Remove(id int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ids, id)
}

func (f *inFlight) Has(id int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ids[id]
}

func (f *inFlight) All() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]int64, 0, len(f.ids))
	for id := range f.ids {
		list = append(list, id)
	}
	return list
}

// unknownFor is the period after a lost reply or a failed heartbeat during which the table is searched for jobs that belong to this pod
// without its knowledge. One search is not enough, because a statement whose reply was lost may commit later, for example on a server that
// was frozen.
const unknownFor = 2 * time.Minute

// unknownOutcomes records that a reply was lost or a heartbeat failed. The first search is due immediately. By each further search, the
// time since the failure has roughly doubled.
type unknownOutcomes struct {
	mu     sync.Mutex
	raised time.Time // zero if no outcome is unknown
	last   time.Time
}

func (d *unknownOutcomes) Raise() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raised, d.last = time.Now(), time.Time{}
}

func (d *unknownOutcomes) Due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.raised.IsZero():
		return false
	case d.last.IsZero():
		return true
	}
	return time.Since(d.last) > d.last.Sub(d.raised)+time.Second
}

// Checked records a search that began at the given time. The first search after unknownFor is the last.
func (d *unknownOutcomes) Checked(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case began.Before(d.raised): // raised again after the search began
	case began.Sub(d.raised) > unknownFor:
		d.raised = time.Time{}
	default:
		d.last = began
	}
}

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
