package engine

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/identity"
)

// An engine notices the end of its lease after each outage, not only after the first.
func TestEachOutageEndsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		e := &Engine{shared: &shared{Identity: &identity.Identity{Services: identity.Services{Log: slog.New(slog.DiscardHandler)}, Lease: fleet.NewLease("")}, Runs: newRuns()}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ends atomic.Int64
		go e.WatchTrust(ctx, func() { ends.Add(1) })
		for outage := range 3 {
			e.Lease.Renewed(time.Now(), time.Now(), time.Second, true)
			time.Sleep(500 * time.Millisecond)
			e.Lease.Renewed(time.Now(), time.Now(), time.Second, true)
			time.Sleep(800 * time.Millisecond)
			is.Equal(int(ends.Load()), outage) // the second heartbeat has extended the lease
			time.Sleep(time.Second)
			is.Equal(int(ends.Load()), outage+1)
		}
	})
}
