package slots

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// aheadPerSlot is the largest number of claims ahead for each slot.
	aheadPerSlot = 10
	// aheadAtMost is the largest number of claims ahead of a pod. A larger claim costs hardly less for each job, and keeps more memory alive: with ten for each of 100 slots a drain took a tenth longer (2 cores, 2026-11-25).
	aheadAtMost = 100
	// AheadFor is the limit for the wait of a claim ahead. Then it returns to its lane, where another pod may take it.
	AheadFor = 200 * time.Millisecond
)

// Ahead holds the claims that wait for a slot, each lane in the order of its jobs. Use [NewAhead]. Safe for concurrent use.
type Ahead struct {
	Added wait.Signal // the first claim was added

	waiting atomic.Int64
	refill  atomic.Bool // half of the claims are used up

	mu      sync.Mutex
	lanes   map[string][]*Claim // the most urgent first
	names   []string            // of lanes, which take turns
	turn    int
	taken   map[*Claim]bool // those that are being started or returned
	filled  int64           // claims after the latest Put
	perSlot int             // limit: one more after each Put, half of it after some waited for too long
}

// Claim is a claim that waits for a slot.
type Claim struct {
	store.Claimed
	Lease job.Lease
	Since time.Time
}

// NewAhead returns an empty Ahead.
func NewAhead() *Ahead {
	return &Ahead{Added: wait.NewSignal(), lanes: map[string][]*Claim{}, taken: map[*Claim]bool{}, perSlot: 1}
}

// Any reports whether a claim waits.
func (a *Ahead) Any() bool { return a.waiting.Load() > 0 }

// Wants returns how many jobs to claim ahead for a lane of n slots whose jobs run for took, when a claim takes roundTrip: as many as the slots
// run during a claim, less those that wait already.
func (a *Ahead) Wants(n int, took, roundTrip time.Duration) int {
	if n == 0 || took == 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	cover := min(int64(n*a.perSlot), aheadAtMost, int64(n)*int64(min(roundTrip, AheadFor)/took))
	return max(0, int(cover-a.waiting.Load()))
}

// WantsUrgent returns the number of more urgent jobs to claim ahead for a lane of n slots: one for each slot, beyond the limit for the others.
func (a *Ahead) WantsUrgent(n int) int {
	return max(0, min(n, n+min(n*aheadPerSlot, aheadAtMost)-int(a.waiting.Load())))
}

// Put adds claims.
func (a *Ahead) Put(claims []*Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range claims {
		if _, found := a.lanes[c.Lane]; !found {
			a.names = append(a.names, c.Lane)
		}
		a.lanes[c.Lane] = append(a.lanes[c.Lane], c)
	}
	for _, list := range a.lanes {
		slices.SortFunc(list, func(a, b *Claim) int { return a.Position().Compare(b.Position()) })
	}
	if a.filled = a.waiting.Add(int64(len(claims))); a.filled == int64(len(claims)) {
		a.Added.Set()
	}
	a.perSlot = min(a.perSlot+1, aheadPerSlot)
}

// Take takes the most urgent claim of the next lane that gives it a slot; nil: there is none. The caller must call Done with it.
func (a *Ahead) Take(slot func(lane string) bool) *Claim {
	if !a.Any() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.names {
		name := a.names[(a.turn+i)%len(a.names)]
		if list := a.lanes[name]; len(list) > 0 && slot(name) {
			a.turn += i + 1
			c := list[0]
			list[0] = nil
			a.lanes[name], a.taken[c] = list[1:], true
			if a.waiting.Add(-1) <= a.filled/2 {
				a.refill.Store(true)
			}
			return c
		}
	}
	return nil
}

// Low reports whether half of the claims are used up.
func (a *Ahead) Low() bool { return a.refill.Load() }

// TakeLow is Low, and has it report true only after further claims are used up.
func (a *Ahead) TakeLow() bool { return a.refill.Swap(false) }

// Remove removes the claims that match. The caller must call Done with them.
func (a *Ahead) Remove(match func(*Claim) bool) (removed []*Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, list := range a.lanes {
		a.lanes[name] = slices.DeleteFunc(list, func(c *Claim) bool {
			if !match(c) {
				return false
			}
			removed, a.taken[c] = append(removed, c), true
			return true
		})
	}
	a.waiting.Add(-int64(len(removed)))
	return removed
}

// RemoveOld is Remove of the claims that have waited for [AheadFor]. If there are some, fewer are to be claimed ahead.
func (a *Ahead) RemoveOld() []*Claim {
	old := a.Remove(func(c *Claim) bool { return time.Since(c.Since) >= AheadFor })
	if len(old) > 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.perSlot = max(a.perSlot/2, 1)
	}
	return old
}

// Done forgets claims that were taken or removed. Call it when they are known elsewhere, or no longer this pod's.
func (a *Ahead) Done(claims ...*Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range claims {
		delete(a.taken, c)
	}
}

// AddKnown adds the leases of all claims, also of those for which Done was not called yet.
func (a *Ahead) AddKnown(known map[job.Lease]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.taken {
		known[c.Lease] = true
	}
	for _, list := range a.lanes {
		for _, c := range list {
			known[c.Lease] = true
		}
	}
}

// Ranks returns the rank of the least urgent claim of each lane that has one.
func (a *Ahead) Ranks() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	ranks := map[string]int{}
	for name, list := range a.lanes {
		if n := len(list); n > 0 {
			ranks[name] = -list[n-1].Priority
		}
	}
	return ranks
}

// MoreUrgent reports whether a claim of a lane is more urgent than a job of a priority.
func (a *Ahead) MoreUrgent(lane string, priority int) bool {
	if !a.Any() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.lanes[lane]
	return len(list) > 0 && list[0].Priority > priority
}

// Oldest returns the moment since which the oldest claim waits; zero: there is none.
func (a *Ahead) Oldest() (since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, list := range a.lanes {
		for _, c := range list {
			if since.IsZero() || c.Since.Before(since) {
				since = c.Since
			}
		}
	}
	return since
}
