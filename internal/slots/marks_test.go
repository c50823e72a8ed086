package slots

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// marksAt returns marks of one rank, by lane.
func marksAt(at time.Time, lanes ...string) map[string][]store.Mark {
	marks := map[string][]store.Mark{}
	for _, lane := range lanes {
		marks[lane] = []store.Mark{{Rank: -10, Since: at}}
	}
	return marks
}

// beginning returns the time at which a read of a lane begins in its marked rank, or zero.
func beginning(marks []store.Mark) time.Time {
	if len(marks) == 0 {
		return time.Time{}
	}
	return marks[0].Since
}

// If a mark has been used by the time it expires, everything is reread. An unused mark expires without a read.
func TestFullReadAfterUsedMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Marks
		again := map[string]int{}
		for _, lane := range []string{"used", "unused"} {
			m.Apply(marksAt(time.Now(), lane), nil, 20*time.Millisecond, time.Minute, func() { again[lane]++ })
		}
		m.ForClaim("unused") // does not count as a use: right after the read, the claim misses nothing
		time.Sleep(markFresh + time.Millisecond)
		if beginning(m.ForClaim("used")).IsZero() {
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
	moment := marksAt(time.Now(), "a")
	m.Apply(moment, nil, time.Millisecond, time.Second, never)
	if !beginning(m.ForClaim("a")).IsZero() {
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
		m.Apply(marksAt(before, "a"), nil, c.took, c.poll, func() {})
		if want := min(8*c.took, 5*time.Second); m.Margin() != want {
			t.Errorf("after a read of %s, marks leave a margin of %s", c.took, m.Margin())
		}
		if span := m.of("a").until.Sub(before); span < c.want || span > c.want+5*time.Second {
			t.Errorf("after a read of %s, the mark is valid for %s", c.took, span)
		}
		if !beginning(m.ForClaim("a")).Equal(before) || !beginning(m.ForClaim("b")).IsZero() {
			t.Error("the marks are not those that were applied")
		}
		m.of("a").wake.Stop()
	}
}

// A read that starts at the current marks advances them without extending their validity.
func TestAdvancedMarkExpiry(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(marksAt(now, "a"), nil, time.Second, time.Minute, func() {})
	until := m.of("a").until
	if since := m.Expired([]string{"a", "b"}); len(since) > 0 {
		t.Fatal(since)
	}
	m.readAt = time.Time{}
	since := m.AfterSlow([]string{"a", "b"})
	if at, asked := since["b"]; !beginning(since["a"]).Equal(now) || !asked || at != nil {
		t.Fatal(since)
	}
	if len(m.AfterSlow([]string{"a"})) > 0 {
		t.Error("a second read is due immediately after the first")
	}
	m.Apply(marksAt(now.Add(time.Second), "a"), since, time.Millisecond, time.Minute, func() {})
	if !m.of("a").until.Equal(until) || !beginning(m.ForClaim("a")).Equal(now.Add(time.Second)) {
		t.Error("the mark did not advance, or its validity was extended")
	}
	m.of("a").wake.Stop()
}

// When a mark expires, everything is read once. Until the read ends, claims and submissions keep using the expired mark.
func TestExpiredMarkDuringFullRead(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(m *Marks, since map[string][]store.Mark, next time.Time) (mark time.Time){
		"read": func(m *Marks, since map[string][]store.Mark, next time.Time) time.Time {
			m.Apply(marksAt(next, "a"), since, time.Second, time.Minute, func() {})
			m.of("a").wake.Stop()
			return next
		},
		"fast read": func(m *Marks, since map[string][]store.Mark, next time.Time) time.Time {
			m.Apply(marksAt(next, "a"), since, time.Millisecond, time.Minute, func() {})
			return time.Time{}
		},
		"failed": func(m *Marks, since map[string][]store.Mark, _ time.Time) time.Time {
			m.Failed(since)
			return time.Time{}
		},
		"dropped": func(m *Marks, _ map[string][]store.Mark, _ time.Time) time.Time {
			m.Drop()
			return time.Time{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Marks
			now := time.Now()
			m.Apply(marksAt(now, "a"), nil, time.Second, time.Minute, func() {})
			m.of("a").wake.Stop()
			if len(m.Expired([]string{"a"})) > 0 {
				t.Error("a valid mark is read again")
			}
			claim := func() {
				m.ForClaim("a")
				m.Prune("a")
			}
			claim()
			m.of("a").until = now.Add(-time.Second)
			since := m.Expired([]string{"a"})
			if at, asked := since["a"]; !asked || at != nil {
				t.Fatal("an expired mark is not read again")
			}
			m.readAt = now.Add(-time.Minute)
			if len(m.Expired([]string{"a"})) > 0 || len(m.AfterSlow([]string{"a"})) > 0 {
				t.Error("an expired mark is read twice at the same time")
			}
			claim()
			if !beginning(m.ForClaim("a")).Equal(now) || !beginning(m.ForSubmission("a")).Equal(now) {
				t.Error("the mark is not used while everything is read")
			}
			if want := ends(&m, since, now.Add(time.Second)); !beginning(m.ForClaim("a")).Equal(want) {
				t.Errorf("claims begin at %v, want %s", m.ForClaim("a"), want)
			}
		})
	}
}

// A worker that is restricted to certain lanes does not change the marks of others.
func TestMarksOfOtherLanes(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(marksAt(now, "x", "y"), nil, time.Second, time.Minute, func() {})
	m.Apply(marksAt(now.Add(time.Second), "x"), marksAt(now, "x"), time.Second, time.Minute, func() {})
	if !beginning(m.ForClaim("y")).Equal(now) || !beginning(m.ForClaim("x")).Equal(now.Add(time.Second)) {
		t.Error("a mark was lost")
	}
	m.of("x").wake.Stop()
	m.of("y").wake.Stop()
}

// A mark moves back to a job that is admitted after it has waited for its subject, and never forward.
func TestMarkBeforeAdmittedJob(t *testing.T) {
	t.Parallel()
	var m Marks
	now := time.Now()
	m.Apply(marksAt(now, "a"), nil, time.Second, time.Minute, func() {})
	for _, ready := range []time.Time{now.Add(-time.Minute), now.Add(time.Second)} {
		m.Admitted(store.AdmittedJob{Lane: "a", Priority: 10, ReadyAt: ready})
		m.Admitted(store.AdmittedJob{Lane: "a", Priority: 9, ReadyAt: ready.Add(-time.Hour)})
		m.Admitted(store.AdmittedJob{Lane: "b", Priority: 10, ReadyAt: ready})
	}
	if !beginning(m.ForClaim("a")).Equal(now.Add(-time.Minute)) || !beginning(m.ForClaim("b")).IsZero() {
		t.Error(m.ForClaim("a"), m.ForClaim("b"))
	}
	m.of("a").wake.Stop()
}
