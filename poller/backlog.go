package poller

import "sync/atomic"

// backlog records whether the latest claim left jobs behind, which decides whether a free slot is worth another claim. It is safe for
// concurrent use.
type backlog struct{ state atomic.Int32 }

const (
	nothingLeft int32 = iota
	someLeft
	claimUnderWay      // a claim is in progress for the slots that were free when it began
	claimUnderWayFreed // a claim is in progress, and another slot has become free since it began
)

// claimBegins records the start of a claim.
func (b *backlog) claimBegins() { b.state.Store(claimUnderWay) }

// claimEnded records whether a claim left jobs behind. It reports whether a slot that became free in the meantime justifies another claim.
func (b *backlog) claimEnded(left bool) (again bool) {
	state := nothingLeft
	if left {
		state = someLeft
	}
	return b.state.Swap(state) == claimUnderWayFreed && left
}

// hasMore reports whether more jobs may be waiting.
func (b *backlog) hasMore() bool { return b.state.Load() != nothingLeft }

// slotFreed records that a slot has become free, and reports whether to claim again. While a claim is in progress, it leaves the decision
// to claimEnded.
func (b *backlog) slotFreed() bool {
	for {
		switch b.state.Load() {
		case someLeft:
			return true
		case claimUnderWay:
			if b.state.CompareAndSwap(claimUnderWay, claimUnderWayFreed) {
				return false
			}
		default:
			return false
		}
	}
}
