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

// If a mark has been used by the time it expires, everything is reread. An unused mark expires without a read.
func TestFullReadAfterUsedMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Marks
		again := map[string]int{}
		for _, lane := range []string{"used", "unused"} {
			m.Apply(map[string]time.Time{lane: time.Now()}, nil, 20*time.Millisecond, time.Minute, func() { again[lane]++ })
		}
		begins(&m, "unused") // does not count as a use: right after the read, the claim misses nothing
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

func TestMarksAfterQuickRead(t *testing.T) {
	t.Parallel()
	var m Marks
	never := func() { t.Error("a pod was woken") }
	moment := map[string]time.Time{"a": time.Now()}
	m.Apply(moment, nil, time.Millisecond, time.Second, never)
	if !begins(&m, "a").IsZero() {
		t.Error("a read that took a millisecond left a mark")
	}
}

func TestMarkValidityLimits(t *testing.T) {
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

// A read that starts at the current marks advances them without extending their validity.
func TestAdvancedMarkExpiry(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
	until := m.markOf("a").until
	if since := m.Expired([]string{"a", "b"}); len(since) > 0 {
		t.Fatal(since)
	}
	since := m.AfterSlow([]string{"a", "b"})
	if at, asked := since["b"]; !since["a"].Equal(now) || !asked || !at.IsZero() {
		t.Fatal(since)
	}
	if len(m.AfterSlow([]string{"a"})) > 0 {
		t.Error("a second read is due immediately after the first")
	}
	m.Apply(map[string]time.Time{"a": now.Add(time.Second)}, since, time.Millisecond, time.Minute, func() {})
	if !m.markOf("a").until.Equal(until) || !begins(&m, "a").Equal(now.Add(time.Second)) {
		t.Error("the mark did not advance, or its validity was extended")
	}
	m.markOf("a").wake.Stop()
}

// When a mark expires, everything is read once. Until the read ends, claims and submissions keep using the expired mark.
func TestExpiredMarkDuringFullRead(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(m *Marks, since map[string]time.Time, next time.Time) (mark time.Time){
		"read": func(m *Marks, since map[string]time.Time, next time.Time) time.Time {
			m.Apply(map[string]time.Time{"a": next}, since, time.Second, time.Minute, func() {})
			m.markOf("a").wake.Stop()
			return next
		},
		"fast read": func(m *Marks, since map[string]time.Time, next time.Time) time.Time {
			m.Apply(map[string]time.Time{"a": next}, since, time.Millisecond, time.Minute, func() {})
			return time.Time{}
		},
		"failed": func(m *Marks, since map[string]time.Time, _ time.Time) time.Time {
			m.Failed(since)
			return time.Time{}
		},
		"dropped": func(m *Marks, _ map[string]time.Time, _ time.Time) time.Time {
			m.Drop()
			return time.Time{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Marks
			now := time.Now()
			m.Apply(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
			m.markOf("a").wake.Stop()
			if len(m.Expired([]string{"a"})) > 0 {
				t.Error("a valid mark is read again")
			}
			claim := func() {
				w := store.Want{Lane: "a"}
				m.ForClaim(&w)
				m.Claimed([]store.Want{w}, store.Claims{}, true, time.Minute, nil)
			}
			claim()
			m.markOf("a").until = now.Add(-time.Second)
			since := m.Expired([]string{"a"})
			if at, asked := since["a"]; !asked || !at.IsZero() {
				t.Fatal("an expired mark is not read again")
			}
			m.readAt = now.Add(-time.Minute)
			m.markOf("a").asked = m.readAt
			if len(m.Expired([]string{"a"})) > 0 || len(m.AfterSlow([]string{"a"})) > 0 {
				t.Error("an expired mark is read twice at the same time")
			}
			claim()
			if !begins(&m, "a").Equal(now) || !m.ForSubmission("a").Equal(now) {
				t.Error("the mark is not used while everything is read")
			}
			if want := ends(&m, since, now.Add(time.Second)); !begins(&m, "a").Equal(want) {
				t.Errorf("claims begin at %s, want %s", begins(&m, "a"), want)
			}
		})
	}
}

// A worker that is restricted to certain lanes does not change the marks of others.
func TestMarksOfOtherLanes(t *testing.T) {
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
