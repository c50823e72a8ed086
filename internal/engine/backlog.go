package engine

import (
	"sync"
	"sync/atomic"

	"github.com/trapeze-run/trapeze/internal/store"
)

// backlog is what is known of the jobs that the latest claim left behind: whether a slot that becomes free is worth another
// one. Safe for concurrent use.
type backlog struct{ state atomic.Int32 }

const (
	nothingLeft int32 = iota
	someLeft
	claimUnderWay      // a claim is under way, for the slots that were free when it began
	claimUnderWayFreed // and one more has become free since
)

// claimBegins notes that a claim begins.
func (b *backlog) claimBegins() { b.state.Store(claimUnderWay) }

// claimEnded notes whether a claim left jobs behind, and reports whether a slot that became free meanwhile is worth another.
func (b *backlog) claimEnded(left bool) (again bool) {
	state := nothingLeft
	if left {
		state = someLeft
	}
	return b.state.Swap(state) == claimUnderWayFreed && left
}

// hasMore reports whether there is work for more slots, as far as is known.
func (b *backlog) hasMore() bool { return b.state.Load() != nothingLeft }

// slotFreed notes that a slot has become free, and reports whether that is worth a claim. While a claim is under way, claimEnded decides.
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

// freedSubjects are the subjects whose run has ended here: the next job of each is claimed by index.
type freedSubjects struct {
	mu   sync.Mutex
	keys map[store.Key]bool
}

func (f *freedSubjects) add(k store.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys == nil {
		f.keys = map[store.Key]bool{}
	}
	f.keys[k] = true
}

func (f *freedSubjects) take() []store.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := make([]store.Key, 0, len(f.keys))
	for k := range f.keys {
		keys = append(keys, k)
	}
	clear(f.keys)
	return keys
}
