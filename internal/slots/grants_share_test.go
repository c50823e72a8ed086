package slots

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// ask returns the slot requests of a pod that searches its unused lanes and finds jobs in one of them.
func ask(l *Lanes, busy string, news bool, now time.Time) []store.Ask {
	var found []string
	if spans, _ := l.Unused(news, time.Minute, now); spans != nil {
		found = []string{busy}
	}
	return l.Asks(found, now)
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
	asks := ask(l, "shared", true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 4}}, now, still)
	for range 4 {
		if !l.Reserve("shared") {
			t.Fatal("the lane has four slots, all granted to this pod")
		}
	}
	lane.Held, lane.Wanted = 4, true // another pod is waiting
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	asks = ask(l, "shared", true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 2, OthersWait: true}}, now, still)
	l.Release("shared", 1) // a job has finished
	if l.Reserve("shared") {
		t.Error("a pod above its share started a job, while another pod waits")
	}
	if !l.Overdue("shared") {
		t.Error("Overdue does not report that the free slot must be returned")
	}
	asks = ask(l, "shared", false, now)
	if len(asks) != 1 || asks[0].Keep != 3 || asks[0].Used != 3 {
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
	spans, _ := l.Unused(true, time.Minute, time.Now())
	if asks := l.Asks(nil, time.Now()); len(spans) > 0 || len(asks) > 0 {
		t.Error("the pod searches or requests lanes:", spans, asks)
	}
}

// A pod searches its unused limited lanes for jobs, but requests slots in no more lanes than it has free slots. It searches the others
// again with the next claim.
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
	spans, most := l.Unused(false, time.Minute, now)
	if covered(spans) != "abdh" || most != 2 {
		t.Fatal("first search:", spans, most)
	}
	asks := l.Asks([]string{"d", "a"}, now)
	if len(asks) != 1 || asks[0].Lane != "d" {
		t.Fatal("the pod has one slot and two lanes have jobs:", asks)
	}
	if !l.Settle(asks, []store.Slots{{Lane: "d", Work: true}}, now, still) { // refused
		t.Fatal("the other lane is not requested")
	}
	if spans, most = l.Unused(false, time.Minute, now); covered(spans) != "abh" || most != 2 {
		t.Fatal("the search of the remaining lanes:", spans, most)
	}
	if asks = l.Asks([]string{"a"}, now); len(asks) != 1 || asks[0].Lane != "a" {
		t.Fatal(asks)
	}
	if l.Settle(asks, []store.Slots{{Lane: "a", Held: 1}}, now, still) {
		t.Error("the pod claims again without a reason")
	}
	if spans, _ = l.Unused(true, time.Minute, now); spans != nil {
		t.Error("a pod searches although its slot is meant for a lane:", spans)
	}
	l.Claimed(nil, "a")
	if spans, _ = l.Unused(false, time.Minute, now); covered(spans) != "bh" {
		t.Error("no search follows one that found jobs:", spans)
	}
	if spans, _ = l.Unused(false, time.Minute, now); spans != nil {
		t.Error("a search is repeated although it found no jobs:", spans)
	}
	if spans, _ = l.Unused(true, time.Minute, now); covered(spans) != "bh" {
		t.Error("a notification does not start a search:", spans)
	}
	if spans, _ = l.Unused(false, time.Minute, now.Add(time.Minute)); covered(spans) != "bh" {
		t.Error("a poll does not start a search:", spans)
	}
	if !l.Reserve("a") {
		t.Fatal("the slot was granted")
	}
	if spans, _ = l.Unused(true, time.Minute, now); spans != nil {
		t.Error("a pod without free slots searches:", spans)
	}
	l.Release("a", 1)
	if spans, _ = l.Unused(false, time.Minute, now); covered(spans) != "bh" {
		t.Error("news that arrives while no slot is free is lost:", spans)
	}
}

// A pod requests no more slots than it can use, and shares them among the lanes with jobs. With the request for another lane, it returns
// the unused slots of lanes where a claim has found no more jobs.
func TestRequestsWithinFreeSlots(t *testing.T) {
	t.Parallel()
	nine := 9
	var b store.Beat
	for _, name := range []string{"a", "b", "c"} {
		b.Lanes = append(b.Lanes, store.Lane{Name: name, Enabled: true, Slots: &nine})
	}
	now, still := time.Now(), func() bool { return true }
	l := NewLanes(7, nil)
	l.Apply(b)
	asked := func(found ...string) (asks []store.Ask) {
		if spans, _ := l.Unused(true, time.Minute, now); spans == nil {
			found = nil
		}
		asks = l.Asks(found, now)
		var replies []store.Slots
		for _, ask := range asks {
			replies = append(replies, store.Slots{Lane: ask.Lane, Held: ask.Wish, Work: true})
		}
		l.Settle(asks, replies, now, still)
		return asks
	}
	first := asked("a", "b")
	if len(first) != 2 || first[0].Wish+first[1].Wish != 7 || first[0].Wish < 3 || first[1].Wish < 3 {
		t.Fatal("seven free slots are not shared between two lanes:", first)
	}
	if asks := asked("c"); len(asks) != 0 {
		t.Fatal("a pod requests more slots than it can use:", asks)
	}
	if !l.Reserve("a") || !l.Reserve("b") {
		t.Fatal("the slots were granted")
	}
	l.Claimed(nil, "b", "default")
	want := []store.Ask{{Lane: "b", Keep: 1, Wish: 1, Used: 1}, {Lane: "c", Wish: first[1].Wish - 1, Keep: first[1].Wish - 1}}
	if asks := asked("c"); !slices.Equal(asks, want) {
		t.Errorf("requests %+v, want %+v", asks, want)
	}
}

// A pod that has filled its slots of a lane searches for more jobs there.
func TestSearchAfterFilledLane(t *testing.T) {
	t.Parallel()
	four := 4
	l := NewLanes(4, nil)
	l.Apply(store.Beat{Lanes: []store.Lane{{Name: "shared", Enabled: true, Slots: &four}}})
	now, still := time.Now(), func() bool { return true }
	l.Settle(ask(l, "shared", true, now), []store.Slots{{Lane: "shared", Held: 1}}, now, still)
	l.Unused(false, time.Minute, now) // the search finds nothing
	wants, _ := l.Wants(now)
	if len(wants) != 1 || wants[0].N != 1 {
		t.Fatal("the claim does not cover the lane:", wants)
	}
	if spans, _ := l.Unused(false, time.Minute, now); spans != nil {
		t.Error("a search follows a claim without a result:", spans)
	}
	l.Claimed(map[string]int{"shared": 0})
	if spans, _ := l.Unused(false, time.Minute, now); len(spans) != 1 {
		t.Error("no search follows a claim that has filled the lane")
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
		l.Notified("shared")
		asks := ask(l, "shared", true, time.Now())
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
	asks := ask(l, "shared", true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 2, Share: 2}}, now, still)
	if asks = ask(l, "shared", false, now); len(asks) != 0 {
		t.Fatal("a request is repeated although its reply arrived:", asks)
	}
	l.Notified("shared")
	if asks = ask(l, "shared", true, now); len(asks) != 1 { // this reply is lost
		t.Fatal("no request after a notification about the grants:", asks)
	}
	if asks = ask(l, "shared", false, now); len(asks) != 1 {
		t.Error("the request whose reply was lost is not repeated:", asks)
	}
}
