package engine

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
)

func TestSubmissionBehindClaimedAheadJob(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	i := &shared{Identity: identity.New(identity.Services{}, identity.Options{PodID: "a", Slots: 1})}
	i.Handle([]string{"k"})
	i.Lanes.Apply(store.Beat{Lanes: []store.Lane{{Name: "default", Enabled: true}}})
	i.Lease.Renewed(time.Now(), time.Now(), time.Minute, true)
	reserves := func(priority int) bool {
		_, reserved := i.reserveFor("k", "default", 0, priority)
		if reserved {
			i.Lanes.Release("default", 1)
		}
		return reserved
	}
	is.True(reserves(9))
	i.Ahead.Put([]*slots.Claim{{Claimed: &store.Claimed{ID: 1, Lane: "default", Priority: 10}, Since: time.Now()}})
	is.True(!reserves(9))
	is.True(reserves(10))
}
