package engine

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
)

// A claim shares a commit with completions only if no more jobs are running than the lane's limit allows, no other claim is in progress,
// and no lane is being swept.
func TestJoinedClaimConditions(t *testing.T) {
	t.Parallel()
	limit := 1
	lane := store.Lane{Name: "default", Enabled: true}
	lowered := lane
	lowered.SlotsPerPod = &limit
	for name, c := range map[string]struct {
		lane   store.Lane
		change func(*claimer)
		joins  bool
	}{
		"usual":           {lane, func(*claimer) {}, true},
		"lowered limit":   {lowered, func(*claimer) {}, false},
		"sweep":           {lane, func(c *claimer) { c.sweeping = true }, false},
		"near database":   {lane, func(c *claimer) { c.away = farAway / 2 }, false},
		"other claim":     {lane, func(c *claimer) { c.mu.Lock() }, false},
		"nothing waiting": {lane, func(c *claimer) { c.backlog.claimEnded(false) }, false},
		"stopping":        {lane, func(c *claimer) { c.Closing.Store(true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &Identity{Opts: Options{ClaimAhead: true}, Lanes: slots.NewLanes(4, nil), Marks: &slots.Marks{}, ahead: slots.NewAhead(),
				Lease: fleet.NewLease("")}
			i.Lease.Renewed(time.Now(), time.Now(), time.Minute, true)
			i.Lanes.Apply(store.Beat{Lanes: []store.Lane{lane}})
			for range 4 {
				i.Lanes.Reserve(lane.Name)
			}
			i.Lanes.Apply(store.Beat{Lanes: []store.Lane{c.lane}})
			i.backlog.claimEnded(true)
			claims := &claimer{Identity: i, away: 2 * farAway}
			c.change(claims)
			run := &Run{Job: work.Job{Claimed: &store.Claimed{Lane: lane.Name}}}
			if write := claims.joinEnds(i.PodID(), []*flush{{run: run}}); (write != nil) != c.joins {
				t.Error("joined:", write != nil)
			}
		})
	}
}
