package slots

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// aheadPerSlot is the maximum number of jobs per slot that are claimed ahead of time.
	aheadPerSlot = 40
	// aheadAtMost is the maximum number of jobs that a pod claims ahead of time. Larger claims are hardly cheaper per job and take more
	// memory. With 40 jobs per slot and 200 per pod, four pods with five slots each drained 40,000 no-op jobs with 78 us of CPU time per job,
	// compared with 115 us for 10 and 100, and 77 us for 100 and 500 (2 cores, PostgreSQL 15.18, 2026-11-29, medians of three rounds).
	aheadAtMost = 200
	// aheadSlots is the largest number of slots with which a lane's jobs are claimed ahead of time. In larger lanes, claiming ahead costs
	// more than it saves: with 500 slots, a queue was drained at the same rate with and without it, and with 2,000 slots, 6% more slowly
	// with it (2 cores, PostgreSQL 15.18, 2026-11-27, medians of four alternating rounds).
	aheadSlots = 500
	// AheadFor is the maximum time that a job claimed ahead of time waits for a slot before it is returned to its lane, where another pod
	// can claim it.
	AheadFor = 200 * time.Millisecond
)

// Ahead holds the jobs that were claimed ahead of time and are waiting for a slot, in claim order within each lane. Use [NewAhead] to
// create an Ahead. It is safe for concurrent use.
type Ahead struct {
	Added routine.Signal // set when claims are added to an empty Ahead

	waiting atomic.Int64
	refill  atomic.Bool // half of the claims have been used

	mu      sync.Mutex
	lanes   map[string][]*Claim // most urgent first
	names   []string            // names of the lanes, in the order in which they take turns
	turn    int
	taken   map[*Claim]bool // claims that are being started or returned
	filled  int64           // number of claims after the latest call to Put
	perSlot int             // limit per slot; each call to Put doubles it, and claims that wait too long halve it
}

// Claim is a claimed job that is waiting for a slot.
type Claim struct {
	*store.Claimed
	Lease job.Lease
	Since time.Time
}

// NewAhead returns an empty Ahead.
func NewAhead() *Ahead {
	return &Ahead{Added: routine.NewSignal(), lanes: map[string][]*Claim{}, taken: map[*Claim]bool{}, perSlot: 1}
}

// Any reports whether any claim is waiting.
func (a *Ahead) Any() bool { return a.waiting.Load() > 0 }

// Wants returns how many jobs to claim ahead of time for a lane with n slots: as many as the slots finish during a claim, minus the jobs of
// all lanes that are already waiting. A job runs for took, and a claim takes roundTrip. Before the subtraction, the number is limited to
// 200 and to n times a limit that adapts to how long claims wait. For more than 500 slots, the result is 0.
func (a *Ahead) Wants(n int, took, roundTrip time.Duration) int {
	if n == 0 || n > aheadSlots || took == 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	cover := min(int64(n*a.perSlot), aheadAtMost, int64(n)*int64(min(roundTrip, AheadFor)/took))
	return max(0, int(cover-a.waiting.Load()))
}

// WantsUrgent returns how many jobs to claim ahead of time, for a lane with n slots, because jobs that are more urgent than the waiting ones
// may have arrived. It allows one per slot, on top of the limit for other jobs.
func (a *Ahead) WantsUrgent(n int) int {
	return max(0, min(n, n+min(n*aheadPerSlot, aheadAtMost)-int(a.waiting.Load())))
}

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
	a.perSlot = min(2*a.perSlot, aheadPerSlot)
}

// Take removes and returns the most urgent claim in the next lane for which slot returns true, or nil if there is none. The caller must
// pass the claim to Done.
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

// Low reports whether half of the claims have been used.
func (a *Ahead) Low() bool { return a.refill.Load() }

// TakeLow is like Low, but also resets the flag.
func (a *Ahead) TakeLow() bool { return a.refill.Swap(false) }

// Remove removes and returns the claims that match. The caller must pass them to Done.
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

// RemoveOld removes and returns the claims that have waited for [AheadFor]. If there are any, it lowers the limit on jobs to claim ahead of
// time.
func (a *Ahead) RemoveOld() []*Claim {
	old := a.Remove(func(c *Claim) bool { return time.Since(c.Since) >= AheadFor })
	if len(old) > 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.perSlot = max(a.perSlot/2, 1)
	}
	return old
}

// Done forgets claims that were taken or removed. Call it once they are tracked elsewhere or no longer belong to this pod.
func (a *Ahead) Done(claims ...*Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range claims {
		delete(a.taken, c)
	}
}

// AddKnown adds the leases of all claims, including taken or removed ones that have not been passed to Done yet.
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

// Lanes returns the lanes in which claims are waiting.
func (a *Ahead) Lanes() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, list := range a.lanes {
		if len(list) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// MoreUrgent reports whether a claim waiting in the lane has a higher priority than the given one.
func (a *Ahead) MoreUrgent(lane string, priority int) bool {
	if !a.Any() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.lanes[lane]
	return len(list) > 0 && list[0].Priority > priority
}

// Oldest returns when the oldest waiting claim was added, or the zero time if no claim is waiting.
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
