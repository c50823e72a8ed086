package slots

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// Each row is a state, an event and the state that follows. The pod runs one job in the lane.
func TestGrantStateTable(t *testing.T) {
	t.Parallel()
	now := time.Now()
	limit := 4
	reply := func(wish int, s store.Slots) event { return event{kind: answered, wish: wish, answer: s, at: now} }
	beat := func(b store.Lane) event {
		b.Slots = &limit
		return event{kind: beaten, beat: b}
	}
	in := func(s state, held int) grant { return grant{state: s, held: held, share: 1, since: now} }
	for _, c := range []struct {
		name  string
		from  grant
		event event
		to    state
		held  int
		claim bool
	}{
		{"jobs were found", in(idle, 0), event{kind: sent, keep: 2}, asked, 0, false},
		{"slots are returned", in(yielding, 2), event{kind: sent, keep: 1}, asked, 1, false},
		{"slots are returned above the limit", in(over, 3), event{kind: sent, keep: 1}, asked, 0, false},
		{"the reply was lost", in(asked, 1), event{kind: sent, keep: 2}, asked, 1, false},

		{"granted", in(asked, 0), reply(2, store.Slots{Held: 2, Share: 1, Work: true}), holding, 2, false},
		{"granted fewer", in(asked, 0), reply(2, store.Slots{Held: 1, Share: 1, Work: true}), queued, 1, false},
		{"granted fewer, no jobs", in(asked, 0), reply(2, store.Slots{Held: 1, Share: 1}), holding, 1, false},
		{"refused", in(asked, 0), reply(2, store.Slots{Work: true}), queued, 0, false},
		{"refused, no jobs", in(asked, 0), reply(2, store.Slots{}), idle, 0, false},
		{"others wait", in(asked, 2), reply(2, store.Slots{Held: 2, Share: 1, OthersWait: true, Work: true}), yielding, 2, false},
		{"others wait for a turn", in(asked, 1), reply(1, store.Slots{Held: 1, OthersWait: true}), yielding, 1, false},
		{"others wait, within share", in(asked, 1), reply(1, store.Slots{Held: 1, Share: 1, OthersWait: true}), holding, 1, false},
		{"over the limit", in(asked, 2), reply(2, store.Slots{Held: 2, Over: true, OthersWait: true}), over, 2, true},
		{"reply older than a notification", in(asking, 0), reply(1, store.Slots{Work: true}), asking, 0, true},
		{"no reply for the lane", in(asked, 2), reply(2, store.Slots{}), idle, 0, false},
		{"reply older than a warning", in(over, 1), reply(2, store.Slots{Held: 2}), over, 2, false},
		{"reply after grants were dropped", in(idle, 0), reply(2, store.Slots{Held: 2}), idle, 0, false},

		{"handed over", in(queued, 0), event{kind: notified}, asking, 0, true},
		{"told that others wait", in(holding, 2), event{kind: notified}, asking, 2, true},
		{"handed over during a request", in(asked, 0), event{kind: notified}, asking, 0, true},
		{"told again", in(yielding, 2), event{kind: notified}, asking, 2, true},
		{"told while resting", in(resting, 2), event{kind: notified}, returning, 2, true},
		{"told for nothing", in(idle, 0), event{kind: notified}, idle, 0, false},
		{"told while over", in(over, 2), event{kind: notified}, over, 2, false},

		{"lane exhausted", in(holding, 2), event{kind: exhausted}, resting, 2, false},
		{"lane exhausted while waiting", in(queued, 1), event{kind: exhausted}, resting, 1, false},
		{"lane exhausted while others wait", in(yielding, 2), event{kind: exhausted}, returning, 2, true},
		{"unlimited lane exhausted", in(idle, 0), event{kind: exhausted}, idle, 0, false},

		{"heartbeat without news", in(holding, 1), beat(store.Lane{Held: 1}), holding, 1, false},
		{"first idle heartbeat", in(holding, 2), beat(store.Lane{Held: 2}), resting, 2, false},
		{"second idle heartbeat", in(resting, 2), beat(store.Lane{Held: 2}), returning, 2, true},
		{"idle heartbeat while others wait", in(yielding, 2), beat(store.Lane{Held: 2, Wanted: true}), returning, 2, true},
		{"busy heartbeat while resting", in(resting, 1), beat(store.Lane{Held: 1}), resting, 1, false},
		{"heartbeat: handed over", in(queued, 0), beat(store.Lane{Held: 1}), asking, 0, true},
		{"heartbeat: slots are free", in(queued, 1), beat(store.Lane{Held: 1, Free: 1}), asking, 1, true},
		{"heartbeat: others wait", in(holding, 1), beat(store.Lane{Held: 1, Wanted: true}), asking, 1, true},
		{"heartbeat: lane was created again", in(holding, 2), beat(store.Lane{Held: 0}), asking, 2, true},
		{"heartbeat: over the limit", in(holding, 2), beat(store.Lane{Held: 2, Over: true}), over, 2, true},
		{"heartbeat: still over the limit", in(over, 2), beat(store.Lane{Held: 2, Over: true}), over, 2, false},
		{"heartbeat: over during a request", in(asked, 0), beat(store.Lane{Over: true}), over, 0, true},
		{"heartbeat: still over during a request", in(over, 0), beat(store.Lane{Over: true}), over, 0, false},
		{"heartbeat: still over after a lost reply", in(over, 0), beat(store.Lane{Held: 2, Over: true}), returning, 0, true},
		{"heartbeat: within the limit again", in(over, 2), beat(store.Lane{Held: 2}), asking, 0, true},
		{"heartbeat: jobs without a slot", in(idle, 0), beat(store.Lane{}), asking, 0, true},
		{"heartbeat during a request", in(asked, 2), beat(store.Lane{Held: 1, Wanted: true}), asked, 2, false},
		{"heartbeat before a request", in(asking, 2), beat(store.Lane{Held: 2}), asking, 2, true},
		{"heartbeat: limit removed", in(holding, 2), event{kind: beaten}, idle, 0, false},
	} {
		g := c.from
		claim := g.next(c.event, 1)
		if g.state != c.to || g.held != c.held || claim != c.claim {
			t.Errorf("%s: state %d, held %d, claim %v, want %d, %d, %v", c.name, g.state, g.held, claim, c.to, c.held, c.claim)
		}
	}
}

func TestUsableSlotsByState(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		state       state
		held, share int
		since       time.Duration
		want        int
	}{
		{idle, 0, 0, 0, 0},
		{asking, 3, 2, 0, 3},
		{asked, 3, 2, 0, 3},
		{queued, 3, 2, 0, 3},
		{holding, 3, 2, 0, 3},
		{resting, 3, 2, 0, 3},
		{returning, 3, 2, 0, 3},
		{yielding, 3, 2, time.Hour, 2},
		{yielding, 3, 0, 0, 1},
		{yielding, 1, 0, turnFor, 0},
		{over, 3, 2, 0, 0},
	} {
		g := grant{state: c.state, held: c.held, share: c.share, since: now.Add(-c.since)}
		if got := g.usable(now); got != c.want {
			t.Errorf("%+v: %d slots are usable", c, got)
		}
	}
}
