package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// takeStarts takes starts of the default lane, and returns how many, and the time until the next one in milliseconds.
func (w *world) takeStarts(n int) (taken, next int) {
	w.t.Helper()
	starts, err := store.TakeStarts(w.ctx(), w.Store, []store.Want{{Lane: "default", N: n}, {Lane: "other", N: n}})
	w.is.NoErr(err)
	return starts["default"].N, int(starts["default"].Next.Milliseconds())
}

func TestStartsOfRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set := func(columns string) {
		w.exec(`delete from trapeze.limits`)
		w.exec(`insert into trapeze.limits (scope, name, key, rate, per, burst, next_start, held_until) values ('lane', 'default', '', ` + columns + `)`)
	}
	for _, c := range []struct {
		row               string
		want, taken, next int // next is rounded up to a whole hour
	}{
		{`10, '10 hours', 1, null, null`, 5, 1, 1},
		{`10, '10 hours', 1, null, null`, 0, 0, 0},
		{`10, '10 hours', 3, null, null`, 5, 3, 1},
		{`10, '10 hours', 3, null, null`, 2, 2, 0},
		{`10, '10 hours', 3, now() - interval '1 year', null`, 5, 3, 1},
		{`10, '10 hours', 3, now() + interval '90 minutes', null`, 5, 1, 1},
		{`10, '10 hours', 3, now() + interval '5 hours', null`, 5, 0, 3},
		{`null, null, null, null, now() + interval '5 hours'`, 5, 0, 5},
		{`null, null, null, null, now() - interval '5 hours'`, 5, 5, 0},
		{`10, '10 hours', 3, now() + interval '5 hours', now() + interval '90 minutes'`, 5, 0, 3},
		{`10, '10 hours', 3, null, now() + interval '5 hours'`, 5, 0, 5},
	} {
		set(c.row)
		taken, next := w.takeStarts(c.want)
		hours := int((time.Duration(next)*time.Millisecond + time.Hour - time.Second) / time.Hour)
		if taken != c.taken || hours != c.next {
			t.Errorf("%s: took %d of %d, the next one in %d ms, want %d, in %d h", c.row, taken, c.want, next, c.taken, c.next)
		}
	}
	set(`10, '10 hours', 3, null, null`)
	taken, _ := w.takeStarts(3)
	w.is.Equal(taken, 3)
	taken, _ = w.takeStarts(1)
	w.is.Equal(taken, 0)
	w.is.NoErr(store.GiveStarts(w.ctx(), w.Store, map[string]int{"default": 2, "other": 1}))
	taken, _ = w.takeStarts(3)
	w.is.Equal(taken, 2)
}

// A held key has no places, and its pending jobs give theirs back; running jobs keep theirs.
func TestHeldKeyGivesPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(keyed("a"), keyed("a"), keyed("b"))
	w.is.Equal(w.admitKeys("a", "b"), 3)
	w.is.Equal(len(w.claims(podID, 1)), 1)
	w.is.NoErr(store.HoldKey(w.ctx(), w.Store, "default", "a", time.Hour))
	w.is.Equal(len(w.places("a")), 1)
	w.is.Equal(len(w.places("b")), 1)
	w.is.Equal(w.admitKeys("a", "b"), 0)
	w.exec(`update trapeze.limits set held_until = now() where key = 'a'`)
	w.is.Equal(w.admitKeys("a", "b"), 1)
}

func TestJobWaitsForRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	id := w.put(plain)[0]
	w.exec(`insert into trapeze.limits (scope, name, key, rate, per, burst, next_start) values ('lane', 'default', '', 1, '1 hour', 2, now() + interval '3 hours')`)
	list, err := view.Blockers(w.ctx(), w.Store, id, func(context.Context) ([]view.BoardSlots, error) { return nil, nil })
	w.is.NoErr(err)
	w.is.Equal(len(list), 1)
	w.is.Equal(list[0].Why, job.BlockerRate)
	w.is.True(time.Until(*list[0].Until) > 110*time.Minute && time.Until(*list[0].Until) <= 2*time.Hour)
}
