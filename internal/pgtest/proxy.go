package pgtest

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/faultnet"
)

// NewProxy starts a network that can misbehave in front of the server of address; it ends with the test.
func NewProxy(t testing.TB, address string) *faultnet.Proxy {
	t.Helper()
	p, err := faultnet.Start(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}
