package store_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// replacing turns a job into one with a unique key that replaces the waiting job's args.
func replacing(key string) func(*store.NewJob) {
	while := "pending"
	return func(n *store.NewJob) { n.UniqueKey, n.UniqueWhile, n.Replace = &key, &while, true }
}

// take submits a job with a unique key in one transaction, as the engine does.
func (w *world) take(changes ...func(*store.NewJob)) (id, holder int64, r store.Replacement, err error) {
	w.t.Helper()
	n := w.new(func(n *store.NewJob) {
		for _, change := range changes {
			change(n)
		}
	})[0]
	err = w.Tx(w.ctx(), func(tx pgx.Tx) (err error) {
		if holder, r, err = store.TakeKey(w.ctx(), w.Store, tx, &n); err != nil || holder != n.ID {
			return err
		}
		if _, err = store.EnqueueIn(w.ctx(), w.Store, tx, []store.NewJob{n}, false); err == nil && n.ThrottleMillis > 0 {
			err = store.MarkThrottled(w.ctx(), w.Store, tx, n.ID)
		}
		return err
	})
	return n.ID, holder, r, err
}

// took is like take, for a submission that must not fail. It returns created, replaced or merged, and the job that does the work.
func (w *world) took(changes ...func(*store.NewJob)) (what string, holder int64) {
	w.t.Helper()
	id, holder, r, err := w.take(changes...)
	w.is.NoErr(err)
	switch {
	case id == holder:
		return "created", holder
	case r.Replaced:
		return "replaced", holder
	}
	return "merged", holder
}

func withArgs(args string) func(*store.NewJob) {
	return func(n *store.NewJob) { n.Args = json.RawMessage(args) }
}

func waits(ms int64) func(*store.NewJob) { return func(n *store.NewJob) { n.DelayMillis = ms } }

// holderStates are the states of a job that has, or had, the unique key "sync". Each function brings a new job into the state, and returns its id.
var holderStates = map[string]struct {
	into func(w *world, podID string) int64
	want string // what a submission that replaces then does
	why  string // the row of the job that was replaced, as in parked, or pending
}{
	"scheduled": {func(w *world, _ string) int64 { return w.holds(waits(1e6)) }, "replaced", "scheduled"},
	"pending":   {func(w *world, _ string) int64 { return w.holds() }, "replaced", "pending"},
	"waits for its subject": {func(w *world, podID string) int64 {
		w.put(about("s"))
		id := w.holds(about("s"))
		w.promote(1)
		return id
	}, "replaced", "subject"},
	"waits for its key": {func(w *world, podID string) int64 {
		id := w.holds(keyed("a"))
		w.promote(1)
		return id
	}, "replaced", "key"},
	"awaits approval": {func(w *world, _ string) int64 {
		w.exec(`update trapeze.lanes set requires_approval = true`)
		return w.holds()
	}, "replaced", "approval"},
	"approved": {func(w *world, _ string) int64 {
		w.exec(`update trapeze.lanes set requires_approval = true`)
		id := w.holds(about("s"))
		w.is.NoErr(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "ann"))
		w.promote(1)
		return id
	}, "replaced", "approval"},
	"approved for later": {func(w *world, _ string) int64 {
		w.exec(`update trapeze.lanes set requires_approval = true`)
		id := w.holds(waits(1e6))
		w.is.NoErr(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "ann"))
		return id
	}, "replaced", "approval"},
	"running": {func(w *world, podID string) int64 { w.holds(); return w.claimOne(podID).ID }, "created", ""},
	"handed back": {func(w *world, podID string) int64 {
		w.holds()
		c := w.claimOne(podID)
		w.is.NoErr(second(w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c)}, "why")))
		return c.ID
	}, "created", ""},
	"waits for its retry": {func(w *world, podID string) int64 {
		w.holds()
		c := w.claimOne(podID)
		w.is.NoErr(second(w.Park(w.ctx(), leaseOf(podID, c), lease, store.Retry{Message: "boom"})))
		return c.ID
	}, "created", ""},
	"snoozed": {func(w *world, podID string) int64 {
		w.holds()
		c := w.claimOne(podID)
		w.is.NoErr(second(w.Snooze(w.ctx(), leaseOf(podID, c), 1, lease, store.Retry{})))
		return c.ID
	}, "created", ""},
	"waits for its children": {func(w *world, podID string) int64 {
		w.holds()
		c := w.claimOne(podID)
		w.fanOut(podID, c, store.FanOut{}, plain)
		return c.ID
	}, "created", ""},
	"ended": {func(w *world, podID string) int64 {
		w.holds()
		c := w.claimOne(podID)
		w.end(podID, ending(c))
		return c.ID
	}, "created", ""},
	"cancelled": {func(w *world, _ string) int64 {
		id := w.holds()
		w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)))
		return id
	}, "created", ""},
	"cancelled, and the key is left": {func(w *world, _ string) int64 {
		id := w.holds()
		release := w.freeze(`select from trapeze.unique_keys for update`)
		w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)))
		release(true)
		return id
	}, "created", ""},
	"retried by an operator": {func(w *world, podID string) int64 {
		id := w.holds()
		w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)))
		w.is.NoErr(second(admin.Retry(w.ctx(), w.Store, id, nil, "ann")))
		return id
	}, "replaced", "scheduled"},
	"pending, holds the key to its end": {func(w *world, _ string) int64 {
		id, _ := w.submit("sync", "active")
		return id
	}, "merged", ""},
	"running, holds the key to its end": {func(w *world, podID string) int64 {
		id, _ := w.submit("sync", "active")
		w.claimOne(podID)
		return id
	}, "merged", ""},
}

// holds submits the first job with the key.
func (w *world) holds(changes ...func(*store.NewJob)) int64 {
	w.t.Helper()
	what, id := w.took(append(changes, replacing("sync"))...)
	w.is.Equal(what, "created")
	return id
}

// same returns the changes that a submission needs to have the subject and key of a job.
func (w *world) same(id int64) func(*store.NewJob) {
	return func(n *store.NewJob) {
		w.is.NoErr(w.pool.QueryRow(w.ctx(), w.In(`select subject, coalesce(key, '') from trapeze.jobs where id = $1`), id).Scan(&n.Subject, &n.Key))
	}
}

func TestReplaceByHolderState(t *testing.T) {
	t.Parallel()
	for name, state := range holderStates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			first := state.into(w, podID)
			before := w.at(first)
			what, holder := w.took(w.same(first), replacing("sync"), withArgs(`{"n":2}`))
			w.is.Equal(what, state.want)
			w.is.Equal(holder == first, what != "created")
			after := w.at(first)
			if what != "replaced" {
				w.is.Equal(string(after.Args), string(before.Args))
				w.is.Equal(after.Replaced, 0)
				return
			}
			w.is.Equal(string(after.Args), `{"n":2}`)
			w.is.Equal(after.Replaced, 1)
			why := pgText(w, `select coalesce((select why from trapeze.parked where id = $1), (select state from trapeze.live where id = $1))`, first)
			w.is.Equal(why, state.why)
			w.is.Equal(after.Epoch-before.Epoch, boolToInt(why == "approval")) // an approval of the former args does not count
			w.is.Equal(after.RunAfter.Equal(*before.RunAfter), true)           // the job keeps its position
			what, holder = w.took(w.same(first), replacing("sync"), withArgs(`{"n":3}`))
			w.is.Equal(what, "replaced")
			w.is.Equal(holder, first)
			w.is.Equal(w.at(first).Replaced, 2)
		})
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func pgText(w *world, sql string, args ...any) (s string) {
	w.t.Helper()
	w.is.NoErr(w.pool.QueryRow(w.ctx(), w.In(sql), args...).Scan(&s))
	return s
}

// A claim whose snapshot is older than the replacement must not run the job with the former args.
func TestReplaceAfterClaimSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.holds()
	release := w.freeze(`select pg_advisory_xact_lock(7)`)
	sql := gated(store.ClaimSQL, store.LanesWanted, "lane, want, ahead, first, last")
	claim := async(func() (store.Claims, error) {
		return store.RunClaim(context.Background(), w.Store, sql, fiveOf(podID))
	})
	w.waiting(1)
	what, _ := w.took(replacing("sync"), withArgs(`{"n":2}`))
	w.is.Equal(what, "replaced")
	release(false)
	found, err := claim()
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 0) // it skips the job
	c := w.claimOne(podID)
	w.is.Equal(c.ID, id)
	w.is.Equal(string(c.Args), `{"n":2}`)
	w.is.Equal(w.count(`select count(*) from trapeze.unique_keys`), 0)
}

func TestReplaceKeyTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	first := w.holds()
	w.took(replacing("sync"), withArgs(`{"n":2}`))
	release := w.freeze(`select from trapeze.unique_keys for update`)
	w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, first, 0, false, "ann", ignoreLease)))
	release(true)
	what, next := w.took(replacing("sync"))
	w.is.Equal(what, "created")
	w.is.Equal(w.claimOne(podID).ID, next) // the former job's replacements do not keep the new one from being claimed
}

func TestReplaceSentBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`update trapeze.lanes set requires_approval = true`)
	approve := func(id int64, only admin.Approval) error {
		return admin.Approve(w.ctx(), w.Store, id, only, "ben")
	}
	id := w.holds(about("s"))
	w.is.NoErr(approve(id, admin.Approval{Epoch: 1}))
	w.promote(1)
	next := w.waits(func(n *store.NewJob) { n.Subject, n.Approved = "s", true })[0]
	what, _ := w.took(about("s"), replacing("sync"), withArgs(`{"n":2}`))
	w.is.Equal(what, "replaced")
	w.is.Equal(w.admitted([]store.Line{{Kind: "k", Subject: "s"}}), 1) // the job has left its subject to the next one
	w.is.Equal(w.claimOne(podID).ID, next)
	w.is.True(errors.Is(approve(id, admin.Approval{Epoch: 1}), job.ErrConflict)) // the approver has not seen the new args
	w.is.NoErr(approve(id, admin.Approval{Epoch: 2}))
}

func TestReplaceRefused(t *testing.T) {
	t.Parallel()
	plan := func(n *store.NewJob) { n.Planned = json.RawMessage(`[{"kind":"k","args":{}}]`) }
	by := func(name string) func(*store.NewJob) { return func(n *store.NewJob) { n.Submitter = name } }
	for name, c := range map[string]struct {
		first, next func(*store.NewJob)
		want        error
	}{
		"another submitter": {by("ann"), by("ben"), job.ErrKeyHeld},
		"another subject":   {about("s"), about("t"), job.ErrInvalid},
		"another key":       {keyed("s"), keyed("t"), job.ErrInvalid},
		"no key":            {keyed("s"), plain, job.ErrInvalid},
		"no steps":          {plan, plain, job.ErrInvalid},
		"other steps":       {plan, plan, nil},
		"more steps":        {plain, plan, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := w.holds(c.first)
			_, _, _, err := w.take(replacing("sync"), withArgs(`{"n":2}`), c.next)
			w.is.True(errors.Is(err, c.want))
			w.is.Equal(w.at(id).Replaced, boolToInt(c.want == nil))
		})
	}
}

func TestReplacedSubmissionReadBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	n := w.new(replacing("sync"))[0]
	w.is.NoErr(w.Tx(w.ctx(), func(tx pgx.Tx) error {
		return cmp.Or(second(store.EnqueueIn(w.ctx(), w.Store, tx, []store.NewJob{n}, false)), second(store.ReserveKey(w.ctx(), w.Store, tx, n.Kind, "sync", n.ID)))
	}))
	w.took(replacing("sync"), withArgs(`{"n":2}`))
	places, err := w.Submitted(w.ctx(), podID, []*store.NewJob{&n})
	w.is.NoErr(err)
	w.is.Equal(len(places), 1) // the job was stored, although it has other args by now
}

func TestPruneKeysAfterReplace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	w.holds(waits(time.Hour.Milliseconds()))
	w.took(replacing("sync"))
	n, err := upkeep.PruneKeys(w.ctx(), w.Store, func(context.Context) error { return nil })
	w.is.NoErr(err)
	w.is.Equal(n, 0)
	what, _ := w.took(replacing("sync"))
	w.is.Equal(what, "replaced")
}

func debounced(wait, max time.Duration) func(*store.NewJob) {
	return func(n *store.NewJob) {
		replacing("sync")(n)
		n.DebounceMillis, n.DebounceMaxMillis, n.DelayMillis = wait.Milliseconds(), max.Milliseconds(), wait.Milliseconds()
	}
}

// passes moves all times of waiting and ended jobs into the past, as if the time had passed.
func (w *world) passes(d time.Duration) {
	w.t.Helper()
	w.exec(`update trapeze.parked set run_after = run_after - $1::interval, started_at = started_at - $1::interval`, d)
	w.exec(`update trapeze.jobs set created_at = created_at - $1::interval`, d)
	w.exec(`update trapeze.live set started_at = started_at - $1::interval`, d)
	w.exec(`update trapeze.done set started_at = started_at - $1::interval`, d)
}

// dueIn returns when a job becomes due, in whole seconds from now.
func (w *world) dueIn(id int64) int {
	w.t.Helper()
	return w.count(`select round(extract(epoch from run_after - now()))::int from trapeze.parked where id = $1`, id)
}

func TestDebounceDueTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		passes, wait, max time.Duration
		due               int // in seconds, after the second submission
	}{
		"before the limit":         {90 * time.Second, 100 * time.Second, time.Hour, 100},
		"up to the limit":          {90 * time.Second, 100 * time.Second, 150 * time.Second, 60},
		"a shorter wait":           {90 * time.Second, 5 * time.Second, time.Hour, 5},
		"due, but not promoted":    {120 * time.Second, 100 * time.Second, time.Hour, 100},
		"the limit has passed":     {200 * time.Second, 100 * time.Second, 150 * time.Second, -50},
		"a lower limit has passed": {90 * time.Second, 10 * time.Second, 20 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.holds(debounced(100*time.Second, time.Hour))
			w.is.Equal(w.dueIn(first), 100)
			w.passes(c.passes)
			_, holder, r, err := w.take(debounced(c.wait, c.max), withArgs(`{"n":2}`))
			w.is.NoErr(err)
			w.is.True(holder == first && r.Replaced)
			w.is.True(w.dueIn(first)-c.due <= 1 && c.due-w.dueIn(first) <= 1)
			w.is.Equal(max(0, int(r.DueIn.Round(time.Second)/time.Second)), max(0, w.dueIn(first)))
			w.is.Equal(string(w.at(first).Args), `{"n":2}`)
		})
	}
}

func TestDebounceOfDueJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	first := w.holds(debounced(time.Minute, time.Hour))
	w.passes(time.Minute)
	w.promote(1)
	what, holder := w.took(debounced(time.Minute, time.Hour), withArgs(`{"n":2}`))
	w.is.True(what == "replaced" && holder == first)
	c := w.claimOne(podID) // it is still pending
	w.is.Equal(string(c.Args), `{"n":2}`)
	what, next := w.took(debounced(time.Minute, time.Hour))
	w.is.Equal(what, "created") // and begins a new wait once it has started
	w.is.Equal(w.dueIn(next), 60)
}

func TestDebounceAfterOperatorRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.holds(debounced(time.Minute, time.Hour))
	w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, first, 0, false, "ann", ignoreLease)))
	w.passes(2 * time.Hour)
	w.is.NoErr(second(admin.Retry(w.ctx(), w.Store, first, nil, "ann")))
	what, _ := w.took(debounced(time.Minute, time.Hour))
	w.is.Equal(what, "replaced")
	w.is.Equal(w.dueIn(first), 0) // the limit has passed long ago, and the job keeps its position
}

func TestPromotionDuringDebounce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.holds(debounced(time.Minute, time.Hour))
	w.passes(time.Minute)
	n := w.new(debounced(time.Minute, time.Hour), plain)[0]
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, r, err := store.TakeKey(w.ctx(), w.Store, tx, &n)
	w.is.NoErr(err)
	w.is.True(r.Replaced)
	w.promote(0) // the job is locked
	w.is.NoErr(tx.Commit(w.ctx()))
	w.promote(0) // and not due any more
	w.is.Equal(w.dueIn(first), 60)
}

func throttled(every time.Duration) func(*store.NewJob) {
	return func(n *store.NewJob) {
		replacing("sync")(n)
		n.ThrottleMillis = every.Milliseconds()
	}
}

func TestThrottleByLastJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last func(w *world, podID string, c *store.Claimed) // what happens to the last job after its start, a minute ago
		due  int                                            // in how many seconds the next job is due; the interval is 100 s
	}{
		"running": {func(*world, string, *store.Claimed) {}, 40},
		"ended":   {func(w *world, podID string, c *store.Claimed) { w.end(podID, ending(c)) }, 40},
		"waits for its retry": {func(w *world, podID string, c *store.Claimed) {
			w.is.NoErr(second(w.Park(w.ctx(), leaseOf(podID, c), lease, store.Retry{Message: "boom"})))
		}, 40},
		"waits for its children": {func(w *world, podID string, c *store.Claimed) { w.fanOut(podID, c, store.FanOut{}, plain) }, 40},
		"ended long ago": {func(w *world, podID string, c *store.Claimed) {
			w.end(podID, ending(c))
			w.passes(time.Minute)
		}, 0},
		"followed by one that started now": {func(w *world, podID string, c *store.Claimed) {
			w.end(podID, ending(c))
			w.took(throttled(time.Second))
			w.claimOne(podID)
		}, 100},
		"followed by one that was cancelled": {func(w *world, podID string, c *store.Claimed) {
			w.end(podID, ending(c))
			what, id := w.took(throttled(100 * time.Second))
			w.is.Equal(what, "created")
			w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)))
		}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			first := w.holds(throttled(100 * time.Second))
			w.passes(time.Hour) // the time of the submission does not count
			what, holder := w.took(throttled(100*time.Second), withArgs(`{"n":2}`))
			w.is.True(what == "replaced" && holder == first) // it is pending
			claimed := w.claimOne(podID)
			w.is.Equal(string(claimed.Args), `{"n":2}`)
			w.passes(time.Minute)
			c.last(w, podID, claimed)
			what, next := w.took(throttled(100 * time.Second))
			w.is.Equal(what, "created")
			what, holder = w.took(throttled(time.Second), withArgs(`{"n":3}`))
			w.is.True(what == "replaced" && holder == next)
			if c.due == 0 {
				w.is.Equal(w.count(`select count(*) from trapeze.live where id = $1`, next), 1)
			} else {
				w.is.True(w.dueIn(next)-c.due <= 1 && c.due-w.dueIn(next) <= 1)
			}
			w.is.Equal(string(w.at(next).Args), `{"n":3}`)
		})
	}
}

func TestThrottlePerKindAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.holds(throttled(time.Hour))
	w.claimOne(podID)
	other := "other"
	for _, change := range []func(*store.NewJob){func(n *store.NewJob) { n.Kind = "j" }, func(n *store.NewJob) { n.UniqueKey = &other }} {
		what, id := w.took(throttled(time.Hour), change)
		w.is.Equal(what, "created")
		w.is.Equal(w.count(`select count(*) from trapeze.live where id = $1`, id), 1) // due at once
	}
}
