package engine

import "sync/atomic"

// backlog is what is known of the jobs that the latest claim left behind: whether a slot that becomes free is worth another
// one. Safe for concurrent use.
type backlog struct{ state atomic.Int32 }

const (
	nothingLeft int32 = iota
	someLeft
	asking      // a claim is under way, for the slots that were free when it began
	askingFreed // and one more has become free since
)

// asks notes that a claim begins.
func (b *backlog) asks() { b.state.Store(asking) }

// told notes whether a claim left jobs behind, and reports whether a slot that became free meanwhile is worth another.
func (b *backlog) told(left bool) (again bool) {
	state := nothingLeft
	if left {
		state = someLeft
	}
	return b.state.Swap(state) == askingFreed && left
}

// left reports whether there is work for more slots, as far as is known.
func (b *backlog) left() bool { return b.state.Load() != nothingLeft }

// freed notes that a slot has become free, and reports whether that is worth a claim. While one is under way, told says.
func (b *backlog) freed() bool {
	for {
		switch b.state.Load() {
		case someLeft:
			return true
		case asking:
			if b.state.CompareAndSwap(asking, askingFreed) {
				return false
			}
		default:
			return false
		}
	}
}
