package slots

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// begins returns the time from which a claim reads a lane.
func begins(m *Marks, lane string) time.Time {
	w := store.Want{Lane: lane}
	m.ForClaim(&w)
	return w.Since
}

// If a claim has used a mark by the time it expires, everything is read again. An unused mark expires without a read.
func TestAMarkThatWasUsedIsFollowedByAReadOfEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Marks
		again := map[string]int{}
		for _, lane := range []string{"used", "unused"} {
			m.Apply(map[string]time.Time{lane: time.Now()}, nil, 20*time.Millisecond, time.Minute, func() { again[lane]++ })
		}
		begins(&m, "unused") // the first claim after the read, which has covered everything that this claim skips
		time.Sleep(markFresh + time.Millisecond)
		if begins(&m, "used").IsZero() {
			t.Error("the claim does not start at the mark")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if again["used"] != 1 || again["unused"] != 0 {
			t.Error(again)
		}
	})
}

func TestAQuickLookLeavesNoMarks(t *testing.T) {
	t.Parallel()
	var m Marks
	never := func() { t.Error("a pod was woken") }
	moment := map[string]time.Time{"a": time.Now()}
	m.Apply(moment, nil, time.Millisecond, time.Second, never)
	if !begins(&m, "a").IsZero() {
		t.Error("a read that took a millisecond left a mark")
	}
}

func TestMarksCountForAMultipleOfTheLookAndNoLongerThanToTheNextPoll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ took, poll, want time.Duration }{
		{10 * time.Millisecond, time.Minute, 300 * time.Millisecond},
		{10 * time.Second, time.Minute, time.Minute},
	} {
		var m Marks
		before := time.Now()
		m.Apply(map[string]time.Time{"a": before}, nil, c.took, c.poll, func() {})
		if want := min(8*c.took, 5*time.Second); m.Margin() != want {
			t.Errorf("after a read of %s, marks leave a margin of %s", c.took, m.Margin())
		}
		if span := m.markOf("a").until.Sub(before); span < c.want || span > c.want+5*time.Second {
			t.Errorf("after a read of %s, the mark is valid for %s", c.took, span)
		}
		if !begins(&m, "a").Equal(before) || !begins(&m, "b").IsZero() {
			t.Error("the marks are not those that were applied")
		}
		m.markOf("a").wake.Stop()
	}
}

// Reading on from the current marks advances them but does not extend their validity.
func TestMarksThatMoveOnEndWhenTheyWouldHave(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
	until := m.markOf("a").until
	if since := m.Look([]string{"a", "b"}, false); len(since) > 0 {
		t.Fatal(since)
	}
	since := m.Look([]string{"a", "b"}, true)
	if at, asked := since["b"]; !since["a"].Equal(now) || !asked || !at.IsZero() {
		t.Fatal(since)
	}
	if len(m.Look([]string{"a"}, true)) > 0 {
		t.Error("a second read is due immediately after the first")
	}
	m.Apply(map[string]time.Time{"a": now.Add(time.Second)}, since, time.Millisecond, time.Minute, func() {})
	if !m.markOf("a").until.Equal(until) || !begins(&m, "a").Equal(now.Add(time.Second)) {
		t.Error("the mark did not advance, or its validity was extended")
	}
	m.markOf("a").wake.Stop()
}

// When marks expire, a single claim reads everything. Concurrent submissions keep using the expired marks.
func TestSubmissionsKeepAMarkUntilAClaimHasLookedAtEverything(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
	m.markOf("a").wake.Stop()
	if len(m.Look([]string{"a"}, false)) > 0 {
		t.Error("a valid mark is read again")
	}
	quick := func() {
		w := store.Want{Lane: "a"}
		m.ForClaim(&w)
		m.Claimed([]store.Want{w}, store.Claims{}, true, time.Minute, nil)
	}
	quick()
	if !begins(&m, "a").Equal(now) {
		t.Error("a fast claim that started at the mark removed it")
	}
	m.markOf("a").until = now.Add(-time.Second)
	if !begins(&m, "a").IsZero() || !m.ForSubmission("a").Equal(now) {
		t.Error("the claim does not read everything, or the submission does")
	}
	if at, asked := m.Look([]string{"a"}, false)["a"]; !asked || !at.IsZero() {
		t.Error("an expired mark is not read again")
	}
	for _, slow := range []bool{false, true} {
		if len(m.Look([]string{"a"}, slow)) > 0 {
			t.Error("an expired mark is read twice at a time")
		}
	}
	quick()
	if !m.ForSubmission("a").IsZero() {
		t.Error("the mark remains after a fast claim that read everything")
	}
}

// A worker that is restricted to some lanes does not change the marks of other lanes.
func TestMarksOfOneLaneLeaveThoseOfTheOthers(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(map[string]time.Time{"x": now, "y": now}, nil, time.Second, time.Minute, func() {})
	m.Apply(map[string]time.Time{"x": now.Add(time.Second)}, map[string]time.Time{"x": now}, time.Second, time.Minute, func() {})
	if !begins(&m, "y").Equal(now) || !begins(&m, "x").Equal(now.Add(time.Second)) {
		t.Error("a mark was lost")
	}
	m.markOf("x").wake.Stop()
	m.markOf("y").wake.Stop()
}
