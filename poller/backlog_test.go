package poller

import "testing"

func TestSlotFreedDuringClaim(t *testing.T) {
	t.Parallel()
	var b backlog
	if b.hasMore() || b.slotFreed() {
		t.Error("jobs are reported as waiting before the first claim")
	}
	for _, left := range []bool{true, false} {
		b.claimBegins()
		if !b.hasMore() || b.slotFreed() || b.slotFreed() {
			t.Error("during a claim, more jobs must be assumed, but a free slot must not start another claim")
		}
		if b.claimEnded(left) != left || b.hasMore() != left || b.slotFreed() != left {
			t.Errorf("wrong state after a claim that left jobs behind: %t", left)
		}
		b.claimBegins()
		if b.claimEnded(left) {
			t.Error("another claim is requested although no slot became free")
		}
	}
}
