package engine

import (
	"sync"
	"time"
)

// unknownFor is how long after a lost reply, or a failed heartbeat, the table is searched for jobs that are ours and unknown here. A
// statement whose reply was lost may still be committed after a first search, for example by a frozen server.
const unknownFor = 2 * time.Minute

// unknownOutcomes records that a reply was lost, or that a heartbeat failed. Searches are due at once, and then each time the elapsed time
// has doubled.
type unknownOutcomes struct {
	mu     sync.Mutex
	raised time.Time // zero: none
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

// checked records a search that began at a given time. The last one is the first after unknownFor.
func (d *unknownOutcomes) checked(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case began.Before(d.raised): // another one has been raised since
	case began.Sub(d.raised) > unknownFor:
		d.raised = time.Time{}
	default:
		d.last = began
	}
}
