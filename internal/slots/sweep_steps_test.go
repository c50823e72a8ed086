package slots

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// claimOnce makes a claim in lane a, applies the given reply, and returns the claim's starting point and whether a sweep is in progress.
func claimOnce(m *Marks, again func(), answer store.Claims) (began store.Want, sweeping bool) {
	w := store.Want{Lane: "a", N: 1}
	m.ForClaim(&w)
	return w, m.Claimed([]store.Want{w}, answer, false, time.Minute, again)
}

func short(took time.Duration, last *store.LanePosition, fresh time.Time) store.Claims {
	return store.Claims{Took: took, Reached: map[string]store.Reached{"a": {Last: last, Fresh: fresh}}}
}

func full(c *store.Claimed) store.Claims {
	c.Lane = "a"
	return store.Claims{Jobs: []*store.Claimed{c}}
}

func TestSweepPagesAndNewJobs(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	at := func(id int64) *store.LanePosition { return &store.LanePosition{ReadyAt: now, ID: id} }
	never := func() { t.Error("a pod was woken") }
	if w, sweeping := claimOnce(&m, never, short(time.Millisecond, at(1000), now)); w.After != nil || !w.Since.IsZero() || !sweeping {
		t.Fatal(w, sweeping)
	}
	for page := int64(1); page < 4; page++ {
		w, sweeping := claimOnce(&m, never, short(time.Millisecond, at(1000*(page+1)), now))
		if w.After == nil || w.After.ID != 1000*page || !w.Since.IsZero() || !sweeping {
			t.Fatal(page, w, sweeping)
		}
		if w, sweeping = claimOnce(&m, never, short(time.Millisecond, nil, now)); w.After != nil || !w.Since.Equal(now) || !sweeping {
			t.Fatal(page, w, sweeping)
		}
	}
	if !m.ForSubmission("a").IsZero() {
		t.Error("a submission skips jobs that the sweep has not read yet")
	}
	if _, sweeping := claimOnce(&m, never, short(time.Millisecond, nil, now)); sweeping {
		t.Fatal("the sweep continues after its end")
	}
	if !begins(&m, "a").Equal(now) || !m.ForSubmission("a").Equal(now) {
		t.Error("the sweep ended without setting a mark")
	}
	m.markOf("a").wake.Stop()
}

func TestSweepPositionAfterFoundJobs(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	claimOnce(&m, nil, short(time.Second, &store.LanePosition{Rank: -10, ReadyAt: now, ID: 7}, now))
	claimOnce(&m, nil, full(&store.Claimed{Priority: 10, ReadyAt: now, ID: 9}))
	claimOnce(&m, nil, full(&store.Claimed{Priority: 50, ReadyAt: now, ID: 3})) // a new job, which is not part of the page
	if w, sweeping := claimOnce(&m, nil, full(&store.Claimed{Priority: 10, ReadyAt: now, ID: 11})); w.After.ID != 9 || !sweeping {
		t.Error(w, sweeping)
	}
	// Another remote worker that shares the marks has read another page in the meantime.
	stale := store.Want{Lane: "a", N: 1, After: &store.LanePosition{Rank: -10, ReadyAt: now, ID: 9}}
	m.Claimed([]store.Want{stale}, short(time.Second, nil, now), false, time.Minute, nil)
	if m.markOf("a").sweep.after.ID != 11 {
		t.Error("the sweep ended or moved back")
	}
}

// New jobs of the sweep's rank start first only as long as the sweep has read nothing but blocked jobs.
func TestSweepOlderJobsFirst(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	at := func(id int64) *store.LanePosition { return &store.LanePosition{Rank: -10, ReadyAt: now, ID: id} }
	claimOnce(&m, nil, short(time.Millisecond, at(1000), now))
	claimOnce(&m, nil, short(time.Millisecond, at(2000), now)) // a page of blocked jobs
	if w, _ := claimOnce(&m, nil, short(time.Millisecond, nil, now)); !w.Since.Equal(now) || w.Above != nil {
		t.Error("a new job waits although only blocked jobs were read", w)
	}
	page := short(time.Millisecond, at(3000), now)
	page.Jobs = full(&store.Claimed{Priority: 10, ReadyAt: now, ID: 2500}).Jobs
	claimOnce(&m, nil, page)
	if w, _ := claimOnce(&m, nil, short(time.Millisecond, nil, now)); !w.Since.Equal(now) || w.Above == nil || *w.Above != -10 {
		t.Error("a new job overtakes older ones", w)
	}
}

func TestMarksAfterShortSweep(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	claimOnce(&m, nil, short(time.Microsecond, &store.LanePosition{ID: 7}, now))
	claimOnce(&m, nil, short(time.Microsecond, nil, now))
	if w, _ := claimOnce(&m, nil, store.Claims{}); w.After != nil || !w.Since.IsZero() {
		t.Error(w)
	}
}

// Jobs submitted after a mark may be blocked too. A sweep then covers only these jobs, and advances the mark without changing its expiry.
func TestSweepFromMark(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
	until := m.markOf("a").until
	if w, _ := claimOnce(&m, nil, short(time.Second, &store.LanePosition{ReadyAt: now, ID: 7}, now.Add(time.Hour))); !w.Since.Equal(now) {
		t.Fatal(w)
	}
	if w, _ := claimOnce(&m, nil, short(time.Second, nil, now.Add(2*time.Hour))); !w.Since.Equal(now) || w.After.ID != 7 {
		t.Fatal(w)
	}
	if mark := m.markOf("a"); !mark.since.Equal(now.Add(time.Hour)) || !mark.until.Equal(until) || mark.sweep != nil {
		t.Error(mark)
	}
	m.markOf("a").wake.Stop()
}

// Jobs that were handed back may be behind the sweep's position. A sweep that keeps finding work, or that cannot continue because no slot
// is free, therefore starts over once a mark would have expired. A sweep that meets only blocked jobs first runs to its end.
func TestSweepRestartAtMarkExpiry(t *testing.T) {
	t.Parallel()
	now := time.Now()
	position := &store.LanePosition{ReadyAt: now, ID: 7}
	for name, c := range map[string]struct {
		answer        store.Claims
		began, latest time.Duration // how long before now
		anew          bool
	}{
		"finds work, short":       {full(&store.Claimed{ID: 8, ReadyAt: now}), 10 * time.Second, 0, false},
		"finds work, long":        {full(&store.Claimed{ID: 8, ReadyAt: now}), 40 * time.Second, 0, true},
		"only blocked jobs, long": {short(0, &store.LanePosition{ReadyAt: now, ID: 8}, now), 40 * time.Second, 0, false},
		"no slot was free":        {short(0, &store.LanePosition{ReadyAt: now, ID: 8}, now), 70 * time.Second, 65 * time.Second, true},
	} {
		var m Marks
		claimOnce(&m, nil, short(time.Second, position, now)) // a mark would be valid for thirty times this duration
		claimOnce(&m, nil, c.answer)
		claimOnce(&m, nil, store.Claims{})
		s := m.markOf("a").sweep
		s.began, s.latest = now.Add(-c.began), now.Add(-c.latest)
		w, _ := claimOnce(&m, nil, store.Claims{})
		if anew := w.After == nil; anew != c.anew {
			t.Errorf("%s: starts again: %t", name, anew)
		}
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
	if open := l.Open(); len(open) != 0 { // the claim above holds all slots
		t.Error(open)
	}
}
