package pgtest

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/faultnet"
)

// NewProxy starts a proxy that can simulate network faults in front of the server at address. It is closed when the test ends.
func NewProxy(t testing.TB, address string) *faultnet.Proxy {
	t.Helper()
	p, err := faultnet.Start(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}
