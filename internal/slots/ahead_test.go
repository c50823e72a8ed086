package slots

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func waiting(lane string, priority int, ids ...int64) (list []*Claim) {
	for _, id := range ids {
		list = append(list, &Claim{Claimed: &store.Claimed{ID: id, Lane: lane, Priority: priority, Fence: 1}, Lease: job.Lease{JobID: id, Fence: 1}, Since: time.Now()})
	}
	return list
}

func many(n int) (ids []int64) {
	for i := range n {
		ids = append(ids, int64(100+i))
	}
	return ids
}

func TestClaimedAheadLaneOrder(t *testing.T) {
	is := is.New(t)
	a := NewAhead()
	a.Put(waiting("a", 0, 2, 1))
	a.Put(waiting("a", 5, 9))
	a.Put(waiting("b", 0, 4, 3))
	is.True(a.MoreUrgent("a", 4) && !a.MoreUrgent("a", 5) && !a.MoreUrgent("b", 0))
	is.Equal(slices.Sorted(slices.Values(a.Lanes())), []string{"a", "b"})
	var order []int64
	for c := a.Take(func(string) bool { return true }); c != nil; c = a.Take(func(string) bool { return true }) {
		order = append(order, c.ID)
		known := map[job.Lease]bool{}
		a.AddKnown(known)
		is.True(known[c.Lease]) // the claim stays known until Done
		a.Done(c)
	}
	is.Equal(order, []int64{9, 3, 1, 4, 2})
	is.True(!a.Any())
	a.Put(waiting("a", 0, 1))
	is.Equal(a.Take(func(lane string) bool { return lane == "b" }), nil) // lane a has no free slot
}

func TestClaimAheadLimitReduction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		a := NewAhead()
		wants := func() int { return a.Wants(4, time.Microsecond, time.Millisecond) }
		is.Equal(wants(), 4)
		for range 20 {
			a.Put(nil)
		}
		is.Equal(wants(), 160)                                          // 40 jobs per slot
		is.Equal(a.Wants(50, time.Microsecond, time.Millisecond), 200)  // the maximum per pod
		is.Equal(a.Wants(4, 500*time.Microsecond, time.Millisecond), 8) // four slots run two jobs each during a claim
		is.Equal(a.Wants(0, time.Microsecond, time.Millisecond), 0)
		is.Equal(a.Wants(500, time.Microsecond, time.Millisecond), 200)
		is.Equal(a.Wants(501, time.Microsecond, time.Millisecond), 0) // nothing is claimed ahead of time in a large lane
		a.Put(waiting("a", 0, 1, 2, 3))
		is.Equal(wants(), 157)
		is.Equal(a.WantsUrgent(4), 4)
		a.Put(waiting("a", 0, many(160)...))
		is.Equal(a.WantsUrgent(4), 1) // one job per slot, on top of the 160 others
		a.Put(waiting("a", 0, many(160)...))
		is.Equal(a.WantsUrgent(4), 0)
		is.Equal(len(a.Remove(func(c *Claim) bool { return c.ID > 3 })), 320)
		is.Equal(len(a.RemoveOld()), 0)
		time.Sleep(AheadFor)
		old := a.RemoveOld()
		is.Equal(len(old), 3)
		is.True(a.Oldest().IsZero())
		a.Done(old...)
		is.Equal(wants(), 80)
	})
}
