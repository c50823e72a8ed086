package slots

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// While other pods wait for slots in a lane, a pod that holds more than its share starts no jobs there. It returns each slot that becomes
// free.
func TestAPodGivesBackWhatIsAboveItsShareWhileOthersWait(t *testing.T) {
	t.Parallel()
	four := 4
	l := NewLanes(10, time.Minute, nil)
	lane := store.Lane{Name: "shared", Enabled: true, Slots: &four}
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	now, still := time.Now(), func() bool { return true }
	asks, _ := l.Asks(true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 4}}, now, still)
	for range 4 {
		if !l.Reserve("shared") {
			t.Fatal("the lane has four slots, all granted to this pod")
		}
	}
	lane.Held, lane.Wanted = 4, true // another pod is waiting
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	asks, _ = l.Asks(true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 2, Want: true}}, now, still)
	l.Release("shared", 1) // a job has finished
	if l.Reserve("shared") {
		t.Error("a pod above its share started a job, while another pod waits")
	}
	if !l.Overdue("shared") {
		t.Error("Overdue does not report that the free slot must be returned")
	}
	asks, _ = l.Asks(false, now)
	if len(asks) != 1 || asks[0].Target != 3 || asks[0].Used != 3 {
		t.Error("the free slot is not returned:", asks)
	}
}

// Requests that the pod has no free slots for are put off, and are sent again soon although nothing else happens.
func TestRequestsThatArePutOffAreRepeatedSoon(t *testing.T) {
	t.Parallel()
	two := 2
	l := NewLanes(1, time.Minute, nil)
	var b store.Beat
	for _, name := range []string{"a", "b", "c"} {
		b.Lanes = append(b.Lanes, store.Lane{Name: name, Enabled: true, Slots: &two})
	}
	l.Apply(b)
	now, still := time.Now(), func() bool { return true }
	asks, _ := l.Asks(false, now)
	for _, ask := range asks {
		if ask.Empty != 1 {
			t.Error("the pod holds no slots yet:", ask)
		}
	}
	_, later := l.Settle(asks, []store.Slots{{Lane: "a", Work: true}, {Lane: "b", Work: true, Later: true}}, now, still) // no job waits in c
	if later <= 0 {
		t.Error("nothing repeats the request for lane b")
	}
	asks, later = l.Asks(false, now)
	if len(asks) != 1 || asks[0].Lane != "b" || asks[0].Empty != 1 {
		t.Error("requests at once, want b:", asks)
	}
	if later <= 0 {
		t.Error("nothing repeats the requests for lanes a and c")
	}
	asks, _ = l.Asks(false, now.Add(askAgainAfter))
	if i := slices.IndexFunc(asks, func(ask store.Ask) bool { return ask.Lane == "a" }); i < 0 || asks[i].Empty != 0 {
		t.Error("the pod waits for a slot of lane a, which has to be settled:", asks)
	}
}

func TestAPodKnowsWhetherItHoldsOrAwaitsSlotsOfLimitedLanes(t *testing.T) {
	t.Parallel()
	two := 2
	l := NewLanes(10, time.Minute, nil)
	l.Apply(store.Beat{Lanes: []store.Lane{{Name: "plain", Enabled: true}, {Name: "shared", Enabled: true, Slots: &two}}})
	for _, c := range []struct {
		reply store.Slots
		want  bool
	}{
		{store.Slots{Lane: "shared"}, false},
		{store.Slots{Lane: "shared", Held: 1}, true},
		{store.Slots{Lane: "shared", Work: true}, true}, // refused, although jobs wait
		{store.Slots{Lane: "shared"}, false},
	} {
		asks, _ := l.Asks(true, time.Now())
		l.Settle(asks, []store.Slots{c.reply}, time.Now(), func() bool { return true })
		if got := l.HoldsOrAwaits(); got != c.want {
			t.Errorf("after %+v, HoldsOrAwaits returns %v", c.reply, got)
		}
	}
}
