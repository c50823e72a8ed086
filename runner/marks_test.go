package runner

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// begins returns the moment at which a claim of a lane begins.
func begins(m *marks, lane string) time.Time {
	w := store.Want{Lane: lane}
	m.forClaim(&w)
	return w.Since
}

// What stands before a mark is not found by claims, which begin there; a look at everything must follow when the marks'
// time is over, and not only with the next poll.
func TestWhatAMarkHidesIsFoundWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(context.Context, *Job[Raw]) (*Outcome, error) { return nil, nil }})
	const look = 20 * time.Millisecond
	future := map[string]time.Time{job.DefaultLane: time.Now().Add(time.Hour)}
	r.marks.told(future, nil, look, r.opts.PollEvery, r.wake)
	ids, err := r.EnqueueMany(t.Context(), []job.Args{Raw{Name: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "a claim has used the mark", func() bool {
		r.marks.mu.Lock()
		defer r.marks.mu.Unlock()
		return r.marks.of(job.DefaultLane).used
	})
	began := time.Now()
	pgtest.WaitFor(t, 8*time.Second, "the job has ended", func() bool {
		j, err := r.Get(t.Context(), ids[0])
		return err == nil && j.State == job.Succeeded
	})
	if waited := time.Since(began); waited > r.opts.PollEvery/2 {
		t.Errorf("it waited %s: for the poll", waited)
	}
}

func TestAQuickLookLeavesNoMarks(t *testing.T) {
	t.Parallel()
	var m marks
	never := func() { t.Error("somebody was woken") }
	moment := map[string]time.Time{"a": time.Now()}
	m.told(moment, nil, time.Millisecond, time.Second, never)
	if !begins(&m, "a").IsZero() {
		t.Error("a look of a millisecond left a mark")
	}
}

func TestMarksCountForAMultipleOfTheLookAndNoLongerThanToTheNextPoll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ took, poll, want time.Duration }{
		{10 * time.Millisecond, time.Minute, 300 * time.Millisecond},
		{10 * time.Second, time.Minute, time.Minute},
	} {
		var m marks
		before := time.Now()
		m.told(map[string]time.Time{"a": before}, nil, c.took, c.poll, func() {})
		if span := m.of("a").until.Sub(before); span < c.want || span > c.want+5*time.Second {
			t.Errorf("a look of %s counts for %s", c.took, span)
		}
		if !begins(&m, "a").Equal(before) || !begins(&m, "b").IsZero() {
			t.Error("the marks are not those told")
		}
		m.of("a").wake.Stop()
	}
}

// A look that only goes on from the marks does not prolong them.
func TestMarksThatMoveOnEndWhenTheyWouldHave(t *testing.T) {
	t.Parallel()
	var m marks
	now := time.Now()
	m.told(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
	until := m.of("a").until
	since, due := m.look([]string{"a", "b"})
	if !due || !since["a"].Equal(now) || !since["b"].IsZero() {
		t.Fatal(since, due)
	}
	if _, due := m.look([]string{"a"}); due {
		t.Error("two looks at once")
	}
	m.told(map[string]time.Time{"a": now.Add(time.Second)}, since, time.Millisecond, time.Minute, func() {})
	if !m.of("a").until.Equal(until) || !begins(&m, "a").Equal(now.Add(time.Second)) {
		t.Error("it did not move on, or was prolonged")
	}
	m.of("a").wake.Stop()
}

// When the time of marks is over, one claim looks at everything, and not every submission that comes meanwhile.
func TestSubmissionsKeepAMarkUntilAClaimHasLookedAtEverything(t *testing.T) {
	t.Parallel()
	var m marks
	now := time.Now()
	m.told(map[string]time.Time{"a": now}, nil, time.Second, time.Minute, func() {})
	m.of("a").wake.Stop()
	quick := func() {
		w := store.Want{Lane: "a"}
		m.forClaim(&w)
		m.claimed([]store.Want{w}, store.Claims{}, true, time.Minute, nil)
	}
	quick()
	if !begins(&m, "a").Equal(now) {
		t.Error("a quick claim from the mark on ended it")
	}
	m.of("a").until = now.Add(-time.Second)
	if !begins(&m, "a").IsZero() || !m.forSubmission("a").Equal(now) {
		t.Error("only the claim is to look at everything")
	}
	quick()
	if !m.forSubmission("a").IsZero() {
		t.Error("it was quick: there is no need for marks")
	}
}

func TestRemoteWorkersOfTheSameKindsShareTheirMarksForAsLongAsThePodPolls(t *testing.T) {
	t.Parallel()
	host := &Runner{engine: &engine{opts: Options{PollEvery: time.Minute}}}
	guest := func(id string, kinds ...string) *Guest {
		g := &Guest{r: &engine{mineAll: kinds, marks: host.guests.marksFor(kinds), opts: Options{PollEvery: guestPollEvery}}, host: host, opts: GuestOptions{ID: id}}
		g.r.member = g
		host.guests.add(g)
		return g
	}
	one, same, other := guest("1", "a", "b"), guest("2", "a", "b"), guest("3", "a")
	if one.r.marks != same.r.marks || one.r.marks == other.r.marks {
		t.Error("marks are not shared by those of the same kinds, and by those alone")
	}
	if most, _ := one.r.member.markLimit(); most != time.Minute {
		t.Errorf("they count for %s at most", most)
	}
	// A look of one that is bound to fewer lanes leaves the others' marks.
	now := time.Now()
	one.r.marks.told(map[string]time.Time{"x": now, "y": now}, nil, time.Second, time.Minute, func() {})
	same.r.marks.told(map[string]time.Time{"x": now.Add(time.Second)}, map[string]time.Time{"x": now}, time.Second, time.Minute, func() {})
	if !begins(one.r.marks, "y").Equal(now) || !begins(one.r.marks, "x").Equal(now.Add(time.Second)) {
		t.Error("a mark was lost")
	}
	one.r.marks.of("x").wake.Stop()
	one.r.marks.of("y").wake.Stop()
}

// What rests on commits that may be missing is dropped when the database has another history: slots that its table granted, low-water marks
// and sweeps.
func TestAnotherHistoryDropsGrantsAndMarks(t *testing.T) {
	t.Parallel()
	r, err := New(pgtest.Pool(t), Options{Logger: slog.New(slog.DiscardHandler)}) // it does not run: no heartbeat changes anything
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.lanes.byName["limited"] = &lane{grant: grant{held: 3, share: 2, wanted: true}}
	granted := func() bool { return r.lanes.byName["limited"].grant != grant{} }
	r.marks.told(map[string]time.Time{"marked": time.Now()}, nil, time.Second, time.Minute, func() {})
	r.marks.of("swept").sweep = &sweep{}
	marked := func() bool { return !begins(r.marks, "marked").IsZero() || r.marks.of("swept").sweep != nil }
	r.heedHistory("one")
	r.heedHistory("one")
	if !granted() || !marked() {
		t.Error("grants or marks were dropped without another history")
	}
	r.heedHistory("another")
	if granted() {
		t.Error("slots are still granted by a table whose latest commits may be missing")
	}
	if marked() {
		t.Error("claims still begin at a mark, or go on with a sweep, of the history before")
	}
}
