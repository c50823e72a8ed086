package engine

import "testing"

func TestASlotThatBecomesFreeDuringAClaimIsWorthAnotherOnlyIfThatLeftSome(t *testing.T) {
	t.Parallel()
	var b backlog
	if b.left() || b.freed() {
		t.Error("nothing is left before the first claim")
	}
	for _, left := range []bool{true, false} {
		b.asks()
		if !b.left() || b.freed() || b.freed() {
			t.Error("while a claim is under way nobody knows, and nobody is to claim beside it")
		}
		if b.claimed(left) != left || b.left() != left || b.freed() != left {
			t.Errorf("the claim left some: %t", left)
		}
		b.asks()
		if b.claimed(left) {
			t.Error("no slot became free")
		}
	}
}
