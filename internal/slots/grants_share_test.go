package slots

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// ask returns the slot requests of a pod that searches its unused lanes and finds jobs in one of them.
func ask(l *Lanes, busy string, heard bool, now time.Time) ([]store.Ask, time.Duration) {
	var found []string
	if spans, _, _ := l.Unused(heard, now); spans != nil {
		found = []string{busy}
	}
	return l.Asks(found, heard, now)
}

// While other pods wait for slots of a lane, a pod that holds more than its share starts no jobs there, and returns each slot that becomes
// free.
func TestReturnOfSlotsAboveShare(t *testing.T) {
	t.Parallel()
	four := 4
	l := NewLanes(10, nil)
	lane := store.Lane{Name: "shared", Enabled: true, Slots: &four}
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	now, still := time.Now(), func() bool { return true }
	asks, _ := ask(l, "shared", true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 4}}, now, still)
	for range 4 {
		if !l.Reserve("shared") {
			t.Fatal("the lane has four slots, all granted to this pod")
		}
	}
	lane.Held, lane.Wanted = 4, true // another pod is waiting
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	asks, _ = ask(l, "shared", true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 2, OthersWait: true}}, now, still)
	l.Release("shared", 1) // a job has finished
	if l.Reserve("shared") {
		t.Error("a pod above its share started a job, while another pod waits")
	}
	if !l.Overdue("shared") {
		t.Error("Overdue does not report that the free slot must be returned")
	}
	asks, _ = ask(l, "shared", false, now)
	if len(asks) != 1 || asks[0].Target != 3 || asks[0].Used != 3 {
		t.Error("the free slot is not returned:", asks)
	}
}

// A pod may run more jobs than it has slots after adopting jobs of its previous process.
func TestLaneSearchOnOverfullPod(t *testing.T) {
	t.Parallel()
	two := 2
	l := NewLanes(1, func(string) bool { return true })
	l.Apply(store.Beat{Lanes: []store.Lane{{Name: "a", Enabled: true, Slots: &two}}})
	l.Adopt("elsewhere")
	l.Adopt("elsewhere")
	spans, _, later := l.Unused(true, time.Now())
	asks, again := l.Asks(nil, true, time.Now())
	if len(spans) > 0 || len(asks) > 0 || later+again > 0 {
		t.Error("the pod searches or requests lanes:", spans, asks, later, again)
	}
}

// A pod searches its unused limited lanes for jobs, but requests slots in no more lanes than it has free slots. It searches the others
// again soon, even if nothing else happens.
func TestRepeatedSearchOfUnusedLanes(t *testing.T) {
	t.Parallel()
	two, none := 2, 0
	l := NewLanes(1, func(lane string) bool { return lane != "f" })
	l.Apply(store.Beat{Lanes: []store.Lane{
		{Name: "a", Enabled: true, Slots: &two}, {Name: "b", Enabled: true, Slots: &two}, {Name: "c", Enabled: true},
		{Name: "d", Enabled: true, Slots: &two}, {Name: "e", Slots: &two}, {Name: "f", Enabled: true, Slots: &two},
		{Name: "g", Enabled: true, Slots: &none}, {Name: "h", Enabled: true, Slots: &two},
	}})
	now, still := time.Now(), func() bool { return true }
	covered := func(spans []store.Span) (names string) {
		for _, name := range l.Names() {
			for _, s := range spans {
				if s.After < name && name <= s.Last {
					names += name
				}
			}
		}
		return names
	}
	spans, most, later := l.Unused(false, now)
	if covered(spans) != "abdh" || most != 2 || later != 0 {
		t.Fatal("first search:", spans, most, later)
	}
	asks, later := l.Asks([]string{"d", "a"}, false, now)
	if len(asks) != 1 || asks[0].Lane != "d" || later <= 0 {
		t.Fatal("the pod has one slot and two lanes have jobs:", asks, later)
	}
	l.Settle(asks, []store.Slots{{Lane: "d", Work: true}}, now, still) // refused
	if spans, most, later = l.Unused(false, now); covered(spans) != "abh" || most != 2 || later != 0 {
		t.Fatal("the search of the remaining lanes:", spans, most, later)
	}
	if asks, _ = l.Asks([]string{"a"}, false, now); len(asks) != 1 || asks[0].Lane != "a" {
		t.Fatal(asks)
	}
	l.Settle(asks, []store.Slots{{Lane: "a", Held: 1}}, now, still)
	if spans, _, later = l.Unused(false, now); spans != nil || later <= 0 {
		t.Error("the lanes are searched again at once:", spans, later)
	}
	if spans, _, _ = l.Unused(true, now); covered(spans) != "bh" {
		t.Error("a notification does not start a search at once:", spans)
	}
	if spans, _, _ = l.Unused(false, now.Add(askAgainAfter)); covered(spans) != "bh" {
		t.Error("nothing searches again after a while:", spans)
	}
	if !l.Reserve("a") {
		t.Fatal("the slot was granted")
	}
	if spans, _, later = l.Unused(true, now); spans != nil || later != 0 {
		t.Error("a pod without free slots searches:", spans)
	}
}

// If a pod holds unused slots in more limited lanes than it has slots, it returns those in lanes where a claim finds no more jobs.
func TestUnusedSlotsInManyLanes(t *testing.T) {
	t.Parallel()
	two := 2
	var b store.Beat
	for _, name := range []string{"a", "b", "c"} {
		b.Lanes = append(b.Lanes, store.Lane{Name: name, Enabled: true, Slots: &two})
	}
	now, still := time.Now(), func() bool { return true }
	for _, c := range []struct {
		slots, running int
		returns        bool
	}{{3, 0, false}, {2, 0, true}, {4, 2, false}} {
		l := NewLanes(c.slots, nil)
		l.Apply(b)
		l.Unused(true, now)
		asks, _ := l.Asks([]string{"a", "b"}, true, now)
		l.Unused(true, now)
		more, _ := l.Asks([]string{"c"}, true, now)
		l.Settle(append(asks, more...), []store.Slots{{Lane: "a", Held: 2}, {Lane: "b", Held: 2}, {Lane: "c", Held: 2}}, now, still)
		for range c.running {
			if !l.Reserve("c") {
				t.Fatal("a granted slot is free")
			}
		}
		l.ReturnIdle("b", "c", "default")
		asks, _ = l.Asks(nil, false, now)
		var returned []string
		for _, ask := range asks {
			if ask.Target != 0 {
				t.Errorf("%+v: %+v", c, ask)
			}
			returned = append(returned, ask.Lane)
		}
		if want := map[bool][]string{true: {"b", "c"}}[c.returns]; !slices.Equal(returned, want) {
			t.Errorf("%+v: slots of %v are returned, want %v", c, returned, want)
		}
	}
}

func TestHeldOrAwaitedSlots(t *testing.T) {
	t.Parallel()
	two := 2
	l := NewLanes(10, nil)
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
		asks, _ := ask(l, "shared", true, time.Now())
		l.Settle(asks, []store.Slots{c.reply}, time.Now(), func() bool { return true })
		if got := l.HoldsOrAwaits(); got != c.want {
			t.Errorf("after %+v, HoldsOrAwaits returns %v", c.reply, got)
		}
	}
}

func TestJobAdoptedBeforeFirstHeartbeat(t *testing.T) {
	t.Parallel()
	one := 1
	l := NewLanes(4, func(string) bool { return true })
	l.Adopt("a")
	l.Apply(store.Beat{Lanes: []store.Lane{{Name: "a", Enabled: true, SlotsPerPod: &one}}})
	if l.Reserve("a") {
		t.Error("a second job starts in a lane of one slot")
	}
	l.Release("a", 1)
	if !l.Reserve("a") || l.Reserve("a") {
		t.Error("the lane does not take one job after the adopted one has ended")
	}
}

// After a lost reply, the pod does not know its grant. It must ask again, although it wants no more slots than it holds.
func TestLostReplyToSlotRequest(t *testing.T) {
	t.Parallel()
	two := 2
	l := NewLanes(2, nil)
	l.Apply(store.Beat{Lanes: []store.Lane{{Name: "shared", Enabled: true, Slots: &two}}})
	now, still := time.Now(), func() bool { return true }
	asks, _ := ask(l, "shared", true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 2, Share: 2}}, now, still)
	if asks, _ = ask(l, "shared", false, now); len(asks) != 0 {
		t.Fatal("a request is repeated although its reply arrived:", asks)
	}
	if asks, _ = ask(l, "shared", true, now); len(asks) != 1 { // this reply is lost
		t.Fatal("no request after other pods have changed the grants:", asks)
	}
	if asks, _ = ask(l, "shared", false, now); len(asks) != 1 {
		t.Error("the request whose reply was lost is not repeated:", asks)
	}
}
