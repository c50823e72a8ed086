package slots

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// With fewer free slots than lanes, a round takes several claims. Each includes only lanes that no earlier one has included, so every lane
// is read exactly once.
func TestSweepReadsLanesOnce(t *testing.T) {
	t.Parallel()
	l := NewLanes(1, nil)
	l.Apply(store.Beat{Lanes: []store.Lane{{Name: "a", Enabled: true}, {Name: "b", Enabled: true}, {Name: "c", Enabled: true}}})
	since := time.Now()
	var asked []string
	for left := 2; left >= 0; left-- {
		wants, unasked := l.Wants(since)
		if len(wants) != 1 || wants[0].N != 1 || unasked != left {
			t.Fatalf("after %v: wants %v, %d unasked", asked, wants, unasked)
		}
		asked = append(asked, wants[0].Lane)
		l.Release(wants[0].Lane, 1) // the claim found nothing
	}
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"a", "b", "c"}) {
		t.Error(asked)
	}
	if wants, unasked := l.Wants(since); len(wants) != 0 || unasked != 0 {
		t.Error("a lane was included twice in one sweep:", wants, unasked)
	}
}

// A claim skips a lane without a free slot, no matter how many rows the lane has.
func TestClaimSkipsFullLane(t *testing.T) {
	t.Parallel()
	l := NewLanes(10, nil)
	one, none := 1, 0
	l.Apply(store.Beat{Lanes: []store.Lane{
		{Name: "free", Enabled: true}, {Name: "full", Enabled: true, SlotsPerPod: &one}, {Name: "closed", Enabled: true, SlotsPerPod: &none},
		{Name: "taken", Enabled: true, Slots: &one}, // other pods hold its slots, so this pod has no grant
	}})
	if !l.Reserve("full") {
		t.Fatal("the lane has one slot, but none was reserved")
	}
	wants, _ := l.Wants(time.Now())
	if len(wants) != 1 || wants[0].Lane != "free" {
		t.Error(wants)
	}
	if l.Free(map[string]int{"free": 1}) {
		t.Error("a job may start although the claim above holds all slots")
	}
}

// Metrics have one series for all lanes of a template, whatever their number.
func TestMadeLanesCountAsTemplate(t *testing.T) {
	t.Parallel()
	l := NewLanes(10, nil)
	two := 2
	b := store.Beat{Lanes: []store.Lane{{Name: "own", Enabled: true}}}
	for _, name := range []string{"t/1", "t/2", "t/3", "t/4", "t/5", "t/6"} {
		b.Lanes = append(b.Lanes, store.Lane{Name: name, Enabled: true, SlotsPerPod: &two, Template: "t/*"})
	}
	l.Apply(b)
	if !l.Reserve("t/1") || !l.Reserve("t/2") || !l.Reserve("own") {
		t.Fatal("no slot was reserved")
	}
	sum := map[string]Use{}
	l.AddUse(sum)
	if want := map[string]Use{"t/*": {Used: 2, Limit: 10}, "own": {Used: 1, Limit: 10}}; !maps.Equal(sum, want) {
		t.Error(sum)
	}
	l.Apply(store.Beat{}) // deleted while its job runs
	if l.CountedAs("t/1") != "t/*" || l.CountedAs("own") != "own" {
		t.Error("a lane with a running job lost its template")
	}
}

func TestShorterHoldOfHeldLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLanes(10, nil)
		l.Apply(store.Beat{Lanes: []store.Lane{{Name: "mail", Enabled: true}}})
		l.Hold("mail", time.Now().Add(time.Minute))
		l.Hold("mail", time.Now().Add(time.Second))
		time.Sleep(59 * time.Second)
		if l.Reserve("mail") {
			t.Error("a job starts before the longer hold ends")
		}
		time.Sleep(time.Second)
		if !l.Reserve("mail") {
			t.Error("no job starts after the holds")
		}
	})
}
