package engine

import "testing"

func TestASlotThatBecomesFreeDuringAClaimIsWorthAnotherOnlyIfThatLeftSome(t *testing.T) {
	t.Parallel()
	var b backlog
	if b.hasMore() || b.slotFreed() {
		t.Error("nothing is left before the first claim")
	}
	for _, left := range []bool{true, false} {
		b.claimBegins()
		if !b.hasMore() || b.slotFreed() || b.slotFreed() {
			t.Error("while a claim is under way nobody knows, and nobody is to claim beside it")
		}
		if b.claimEnded(left) != left || b.hasMore() != left || b.slotFreed() != left {
			t.Errorf("the claim left some: %t", left)
		}
		b.claimBegins()
		if b.claimEnded(left) {
			t.Error("no slot became free")
		}
	}
}
