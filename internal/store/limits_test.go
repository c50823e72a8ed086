package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func laneLimit(key string, slots int) job.KeyLimitChange {
	return job.KeyLimitChange{LimitOf: job.LimitOf{Scope: job.LaneScope, Name: "default", Key: key}, Slots: job.To(slots)}
}

func kindLimit(key string, slots int) job.KeyLimitChange {
	return job.KeyLimitChange{LimitOf: job.LimitOf{Scope: job.KindScope, Name: "k", Key: key}, Slots: job.To(slots)}
}

// limit sets a limit, and returns how many jobs wait again and how many have become pending.
func (w *world) limit(c job.KeyLimitChange) (held, admitted int) {
	w.t.Helper()
	_, err := admin.SetLimit(w.ctx(), w.Store, c, "ann")
	w.is.NoErr(err)
	held, lines, err := admin.ApplyLimit(w.ctx(), w.Store, c.LimitOf)
	w.is.NoErr(err)
	jobs, err := w.AdmitNext(w.ctx(), lines...)
	w.is.NoErr(err)
	return held, len(jobs)
}

// putKeyed submits n jobs of each key.
func (w *world) putKeyed(n int, keys ...string) {
	var list []func(*store.NewJob)
	for _, key := range keys {
		for range n {
			list = append(list, keyed(key))
		}
	}
	w.put(list...)
}

func TestLimitIsMergedAndAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set := func(c job.KeyLimitChange) job.KeyLimitChanged {
		done, err := admin.SetLimit(w.ctx(), w.Store, c, "ann")
		w.is.NoErr(err)
		return done
	}
	first := set(laneLimit("a", 3))
	w.is.Equal(first.Before, nil)
	w.is.Equal(first.Changed, []string{"slots"})
	weight := job.KeyLimitChange{LimitOf: first.LimitOf, Weight: job.To(2)}
	w.is.Equal(set(weight).After, &job.KeyLimit{LimitOf: first.LimitOf, Slots: new(3), Weight: new(2)}) // the slots are kept
	w.is.Equal(len(set(weight).Changed), 0)
	list, err := admin.Limits(w.ctx(), w.Store, job.KeyLimitFilter{Scope: "lane"}, job.LimitOf{}, 10)
	w.is.NoErr(err)
	w.is.Equal(len(list), 1)
	w.is.Equal(set(job.KeyLimitChange{LimitOf: first.LimitOf}.Whole()).After, nil)
	w.is.Equal(len(set(job.KeyLimitChange{LimitOf: first.LimitOf}.Whole()).Changed), 0) // it no longer exists
	w.is.Equal(w.count(`select count(*) from trapeze.limits`), 0)
	w.is.Equal(w.count(`select count(*) from trapeze.audit where action = 'limit.set' and target = 'lane default' and actor = 'ann'`), 3)
	w.is.Equal(w.count(`select count(*) from trapeze.job_events where event = 'limit.changed' and message = 'default'`), 3)
}

func TestLimitsEndWithTheirLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	other := job.KeyLimitChange{LimitOf: job.LimitOf{Scope: job.LaneScope, Name: "other", Key: "*"}, Slots: job.To(1)}
	w.limit(other)
	w.limit(laneLimit("*", 2))
	_, err := admin.DeleteLane(w.ctx(), w.Store, "other", "", "ann", false)
	w.is.NoErr(err)
	w.is.Equal(w.count(`select count(*) from trapeze.limits`), 1)
	_, err = admin.SetLimit(w.ctx(), w.Store, other, "ann")
	w.is.True(errors.Is(err, job.ErrUnknownLane))
	_, err = admin.SetLimit(w.ctx(), w.Store, job.KeyLimitChange{LimitOf: other.LimitOf}.Whole(), "ann")
	w.is.NoErr(err) // what was inserted through SQL can be removed
}

func TestInvalidLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	change := func(scope, name, key string, slots, weight *int) job.KeyLimitChange {
		c := job.KeyLimitChange{LimitOf: job.LimitOf{Scope: scope, Name: name, Key: key}}
		c.Slots.Set, c.Slots.Value, c.Weight.Set, c.Weight.Value = slots != nil, slots, weight != nil, weight
		return c
	}
	rate := func(scope, name, key string, n *int, per *job.Seconds, burst *int) job.KeyLimitChange {
		c := job.KeyLimitChange{LimitOf: job.LimitOf{Scope: scope, Name: name, Key: key}, Per: per, Burst: burst}
		c.Rate.Set, c.Rate.Value = true, n
		return c
	}
	w.exec(`insert into trapeze.lanes (name, engine) values ('elsewhere', 'temporal')`)
	for _, c := range []struct {
		name, says string
		change     job.KeyLimitChange
	}{
		{"no slots", "invalid setting: slots 0: want 1 to 1000000, or none", change("lane", "default", "a", new(0), nil)},
		{"negative slots", "invalid setting: slots -1: want 1 to 1000000, or none", change("lane", "default", "a", new(-1), nil)},
		{"weight of zero", "invalid setting: weight 0: want 1 to 100, or none", change("lane", "default", "a", nil, new(0))},
		{"too much weight", "invalid setting: weight 101: want 1 to 100, or none", change("lane", "default", "a", nil, new(101))},
		{"weight of a kind", "invalid setting: weight of a kind: set the weight in a lane", change("kind", "k", "a", nil, new(2))},
		{"unknown scope", `invalid setting: scope "pod": want lane or kind`, change("pod", "a", "a", new(1), nil)},
		{"unknown lane", "unknown lane", change("lane", "nowhere", "a", new(1), nil)},
		{"no name", "invalid setting: the name of a kind has 0 bytes: want 1 to 100 bytes of text", change("kind", "", "a", new(1), nil)},
		{"slots of all jobs", "invalid setting: slots and weight are of a key: name a key, or * for each key; the slots of the whole lane are a setting of the lane", change("lane", "default", "", new(1), nil)},
		{"rate of a kind", "invalid setting: the key is empty: name a key, or * for each key; for the rate of a kind, give it a lane of its own, and that lane the rate", rate("kind", "k", "", new(1), nil, nil)},
		{"rate of a key", "invalid setting: a rate is for all jobs of a lane, not for a key: give each key a lane of its own, which a template such as tenant/* makes, and the template the rate", rate("lane", "default", "a", new(1), nil, nil)},
		{"no rate", "invalid setting: rate of 0: want 1 to 1000000, or none", rate("lane", "default", "", new(0), nil, nil)},
		{"no interval", "invalid setting: interval of 0s for a rate: want whole seconds, from 1s to a year", rate("lane", "default", "", new(1), new(job.Seconds(0)), nil)},
		{"half a second", "invalid setting: interval of 500ms for a rate: want whole seconds, from 1s to a year", rate("lane", "default", "", new(1), new(job.Seconds(time.Second/2)), nil)},
		{"no burst", "invalid setting: burst of 0: want 1 to 1000000", rate("lane", "default", "", new(1), nil, new(0))},
		{"rate on Temporal", "invalid setting: the engine temporal runs the jobs of the lane: limit their rate there", rate("lane", "elsewhere", "", new(1), nil, nil)},
		{"long key", "invalid setting: the key has 201 bytes: want 1 to 200 bytes of text", change("lane", "default", strings.Repeat("x", 201), new(1), nil)},
		{"nothing set", "invalid setting: the limit sets nothing: want slots, weight or rate", change("lane", "default", "a", nil, nil)},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := admin.SetLimit(t.Context(), w.Store, c.change, "ann")
			if err == nil || !strings.HasPrefix(err.Error(), c.says+" (set a limit of") {
				t.Errorf("%v", err)
			}
			if !errors.Is(err, job.ErrInvalidSetting) && !errors.Is(err, job.ErrUnknownLane) {
				t.Errorf("%v has another class", err)
			}
		})
	}
	w.is.Equal(w.count(`select count(*) from trapeze.limits`), 0)
	w.is.Equal(w.count(`select count(*) from trapeze.audit`), 0)
}

func TestRaisedLimitAdmits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.limit(laneLimit("*", 1))
	w.putKeyed(5, "a", "b")
	w.is.Equal(w.admitKeys("a", "b"), 2)
	held, admitted := w.limit(laneLimit("a", 3))
	w.is.Equal([]int{held, admitted}, []int{0, 2})
	held, admitted = w.limit(laneLimit("*", 2))
	w.is.Equal([]int{held, admitted}, []int{0, 1})
	held, admitted = w.limit(job.KeyLimitChange{LimitOf: laneLimit("a", 1).LimitOf}.Whole()) // each key's limit holds again
	w.is.Equal([]int{held, admitted}, []int{1, 0})
	held, admitted = w.limit(job.KeyLimitChange{LimitOf: laneLimit("*", 1).LimitOf}.Whole())
	w.is.Equal([]int{held, admitted}, []int{0, 6})
}

// A lower limit does not affect running jobs. Pending jobs beyond it wait again.
func TestLoweredLimitHoldsPendingJobs(t *testing.T) {
	t.Parallel()
	for _, limit := range []func(string, int) job.KeyLimitChange{laneLimit, kindLimit} {
		for _, key := range []string{"a", "*"} {
			t.Run(limit("", 0).Scope+" "+key, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				podID := w.pod("a")
				w.putKeyed(6, "a")
				w.put(func(n *store.NewJob) { n.Key, n.Subject = "a", "s" })
				w.is.Equal(w.admitKeys("a"), 7)
				running := w.claims(podID, 3)
				w.is.Equal(len(running), 3)
				held, admitted := w.limit(limit(key, 2))
				w.is.Equal([]int{held, admitted}, []int{4, 0})
				w.is.Equal(w.count(`select count(*) from trapeze.live where state = 'pending'`), 0)
				w.is.Equal(w.count(`select count(*) from trapeze.subjects where state = 'held'`), 0)
				for i, pending := range []int{0, 1, 2} { // as many run as may, then one job fewer, then two
					w.end(podID, ending(running[i]))
					w.is.Equal(w.count(`select count(*) from trapeze.live where state = 'pending'`), pending)
				}
				held, admitted = w.limit(limit(key, 1))
				w.is.Equal([]int{held, admitted}, []int{1, 0})
				held, admitted = w.limit(limit(key, 9))
				w.is.Equal([]int{held, admitted}, []int{0, 3})
			})
		}
	}
}

func TestKeysInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	w.limit(laneLimit("a", 2))
	w.limit(kindLimit("b", 1))
	w.putKeyed(5, "a")
	w.putKeyed(3, "b")
	w.putKeyed(40, "c") // the window is 32
	w.putKeyed(1, "d")
	w.put(func(n *store.NewJob) { n.Key, n.Lane = "b", "other" })
	w.admitKeys("a", "b", "c", "d")
	w.claims(podID, 1)
	use, err := view.KeysInUse(w.ctx(), w.Store, "default", "", "")
	w.is.NoErr(err)
	w.is.True(use.Complete)
	var lines []string
	for _, k := range use.Keys {
		w.is.True(time.Since(k.Oldest) < time.Minute)
		limit := "none"
		if k.KindLimit != nil {
			limit = fmt.Sprint(*k.KindLimit)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s: %d wait, %d of %d, %d of %s, %s", k.Key, k.Lane, k.Kind, k.Waiting, k.LaneUsed, k.LaneLimit, k.KindUsed, limit, k.Binds))
	}
	w.is.Equal(lines, []string{
		"c default k: 8 wait, 32 of 32, 0 of none, window",
		"a default k: 3 wait, 2 of 2, 0 of none, lane",
		"b default k: 2 wait, 1 of 32, 1 of 1, kind",
	})
	use, err = view.KeysInUse(w.ctx(), w.Store, "", "k", "b")
	w.is.NoErr(err)
	w.is.Equal(len(use.Keys), 2) // in both lanes
	use, err = view.KeysInUse(w.ctx(), w.Store, "", "", "e")
	w.is.NoErr(err)
	w.is.Equal(len(use.Keys), 0)
}

// The key with the most waiting jobs is found behind more keys than one statement examines.
func TestKeysInUseAreSampled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject, key)
		select i, 'key', now(), 1, 0, 'default', 'k', '', case when i % 3 = 0 then 'zzz' else 'key-' || i end from generate_series(1, 9000) i`)
	defer w.exec(`delete from trapeze.parked`)
	use, err := view.KeysInUse(w.ctx(), w.Store, "default", "", "")
	w.is.NoErr(err)
	w.is.True(!use.Complete)
	w.is.Equal(len(use.Keys), 100)
	w.is.Equal([]any{use.Keys[0].Key, use.Keys[0].Waiting}, []any{"zzz", job.MaxKeyWaiting})
	use, err = view.KeysInUse(w.ctx(), w.Store, "nowhere", "", "")
	w.is.NoErr(err)
	w.is.True(!use.Complete)
	w.is.Equal(len(use.Keys), 0)
}
