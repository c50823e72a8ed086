package store_test

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// draw returns a new job.
func (h *keyHistory) draw(n *store.NewJob) {
	n.Kind, n.Lane, n.Key = pick(h.r, "k", "few", "m"), pick(h.r, "default", "default", "side"), pick(h.r, "", "a", "a", "b", "c", "d")
	n.Subject, n.Priority = pick(h.r, "", "", "s", "t"), pick(h.r, 10, 10, 5, 20)
	n.DelayMillis = pick(h.r, int64(0), 0, 0, 0, 0, 0, 3_600_000)
	n.MaxCrashes = pick(h.r, nil, ptr(1), ptr(4))
}

func (h *keyHistory) jobs() []store.NewJob {
	list := h.new(slices.Repeat([]func(*store.NewJob){h.draw}, 1+h.r.IntN(3))...)
	if h.r.IntN(6) == 0 {
		one := list[0]
		list = h.new(slices.Repeat([]func(*store.NewJob){func(n *store.NewJob) { n.Kind, n.Lane, n.Key = one.Kind, one.Lane, one.Key }}, 5+h.r.IntN(25))...)
	}
	for _, n := range list {
		h.note("%d %s in %s key %q subject %q priority %d delay %d", n.ID, n.Kind, n.Lane, n.Key, n.Subject, n.Priority, n.DelayMillis)
	}
	return list
}

func (h *keyHistory) enqueue() (lines []store.Line) {
	list, podID := h.jobs(), pick(h.r, h.pods...)
	for i := range list {
		list[i].Starts = h.r.IntN(2) == 0
	}
	places, err := h.Enqueue(h.ctx(), podID, list)
	h.is.NoErr(err)
	for _, n := range list {
		switch places[n.ID] {
		case store.PlacedRunning:
			h.started(podID, n)
		case store.PlacedWaiting, store.PlacedKeyed:
			lines = append(lines, n.Lines()...)
		}
	}
	return lines
}

// started notes a job that was started on insert.
func (h *keyHistory) started(podID string, n store.NewJob) {
	c := &store.Claimed{ID: n.ID, Lane: n.Lane, Priority: n.Priority, Fence: 1}
	c.Kind, c.Subject, c.Key, c.Step, c.PipelineID = n.Kind, n.Subject, n.Key, n.Step, n.PipelineID
	if c.PipelineID == 0 {
		c.PipelineID = n.ID
	}
	h.held[n.ID] = keyClaim{podID, c}
	h.note("%d runs", n.ID)
}

func (h *keyHistory) enqueueIn() []store.Line {
	list := h.jobs()
	h.is.NoErr(second(store.EnqueueIn(h.ctx(), h.Store, h.pool, list, false)))
	return nil
}

func (h *keyHistory) claim() []store.Line {
	podID := pick(h.r, h.pods...)
	wants := []store.Want{{Lane: "default", N: 1 + h.r.IntN(6)}, {Lane: "side", N: h.r.IntN(4)}}
	found, err := h.Claim(h.ctx(), podID, wants, []string{"k", "few", "m"}, nil, true)
	h.is.NoErr(err)
	for _, c := range found.Jobs {
		h.held[c.ID] = keyClaim{podID, c}
		h.note("%d", c.ID)
	}
	return nil
}

// some returns up to n claims of one pod.
func (h *keyHistory) some(n int) (podID string, list []keyClaim) {
	for _, id := range h.shuffled() {
		if c := h.held[id]; len(list) < n && (podID == "" || podID == c.pod) {
			podID, list = c.pod, append(list, c)
		}
	}
	return podID, list
}

func (h *keyHistory) shuffled() []int64 {
	ids := slices.Sorted(maps.Keys(h.held))
	h.r.Shuffle(len(ids), func(i, k int) { ids[i], ids[k] = ids[k], ids[i] })
	return ids
}

func (h *keyHistory) finish() (lines []store.Line) {
	podID, list := h.some(1 + h.r.IntN(4))
	var ends []store.Ending
	for _, c := range list {
		e := ending(c.Claimed)
		e.InLine = len(c.Lines()) > 0
		if h.r.IntN(2) == 0 {
			e.Next = h.next(c)
		}
		ends = append(ends, e)
	}
	if len(ends) == 0 {
		return nil
	}
	ended, err := h.Finish(h.ctx(), podID, ends)
	if err != nil || len(ended) != len(ends) {
		h.failf("%d ends of %d: %v", len(ended), len(ends), err)
	}
	for i, c := range list {
		lines = append(lines, h.ended(c, ends[i], ended[c.ID])...)
	}
	return lines
}

// next returns the next step of a claim: often with the same key, kind and lane.
func (h *keyHistory) next(c keyClaim) *store.NewJob {
	n := h.new(then(c.Claimed, func(n *store.NewJob) {
		h.draw(n)
		if h.r.IntN(3) > 0 {
			n.Kind, n.Lane = c.Kind, c.Lane
		}
		if h.r.IntN(3) > 0 {
			n.Key = c.Key
		}
		if h.r.IntN(3) > 0 {
			n.Subject = c.Subject
		}
		n.Starts = h.r.IntN(4) > 0
	}))[0]
	h.heirs[n.ID] = c.ID
	return &n
}

// ended applies an end to the claims, and returns the lines that the engine notes.
func (h *keyHistory) ended(c keyClaim, e store.Ending, got store.Ended) (lines []store.Line) {
	delete(h.held, c.ID)
	subject := c.Subject
	if got.Heir != nil {
		subject = ""
	}
	lines = store.Lines(c.Kind, subject, c.Key)
	h.note("%d %s", c.ID, got.State)
	if n := e.Next; n != nil {
		h.note("then %d %s in %s key %q subject %q", n.ID, n.Kind, n.Lane, n.Key, n.Subject)
		if got.ChildRunning {
			h.started(c.pod, *n)
		} else if got.State == job.Succeeded {
			lines = append(lines, n.Lines()...)
		}
	}
	return lines
}

func (h *keyHistory) park() []store.Line {
	podID, list := h.some(1)
	if len(list) == 0 {
		return nil
	}
	c := list[0]
	park := pick(h.r, "retry", "snooze")
	wait := pick(h.r, 0, time.Hour)
	h.note("%d %s %v", c.ID, park, wait)
	var err error
	if park == "retry" {
		_, err = h.Park(h.ctx(), leaseOf(podID, c.Claimed), wait, store.Retry{})
	} else {
		_, err = h.Snooze(h.ctx(), leaseOf(podID, c.Claimed), 1, wait, store.Retry{})
	}
	if errors.Is(err, job.ErrLeaseLost) { // cancelled
		e := ending(c.Claimed)
		e.InLine = len(c.Lines()) > 0
		ended, err := h.Finish(h.ctx(), podID, []store.Ending{e})
		h.is.NoErr(err)
		return h.ended(c, e, ended[c.ID])
	}
	h.is.NoErr(err)
	delete(h.held, c.ID)
	return c.Lines()
}

func (h *keyHistory) handBack() (lines []store.Line) {
	podID, list := h.some(1 + h.r.IntN(3))
	var leases []job.Lease
	for _, c := range list {
		leases = append(leases, leaseOf(podID, c.Claimed))
	}
	if len(leases) == 0 {
		return nil
	}
	back, err := h.HandBack(h.ctx(), podID, leases, "test")
	h.is.NoErr(err)
	for _, c := range list {
		if back[c.ID] {
			h.note("%d", c.ID)
			delete(h.held, c.ID)
			lines = append(lines, c.Lines()...)
		}
	}
	return lines
}

func (h *keyHistory) comeDue() []store.Line {
	h.exec(`update trapeze.parked set run_after = least(run_after, now() - interval '1 second') where id in (select id from trapeze.parked
		where why in ('scheduled', 'retry', 'snooze') order by id limit $1)`, 1+h.r.IntN(3))
	return nil
}

func (h *keyHistory) promote() []store.Line {
	_, waiting, err := h.Promote(h.ctx(), pick(h.r, 1, 3, 100))
	h.is.NoErr(err)
	return waiting
}

// waitingJob returns the id of a job that has not ended and, if running is false, does not run. It returns 0 if there is none.
func (h *keyHistory) waitingJob(running bool) int64 {
	ids, err := store.Rows(h.ctx(), h.Store, pgx.RowTo[int64], `select id from trapeze.live where state = 'pending' or $1
		union select id from trapeze.parked order by id`, running)
	h.is.NoErr(err)
	if len(ids) == 0 {
		return 0
	}
	return pick(h.r, ids...)
}

func (h *keyHistory) cancel() []store.Line {
	id, stop := h.waitingJob(true), h.r.IntN(2) == 0
	if id == 0 {
		return nil
	}
	h.note("%d, stop %v", id, stop)
	c, err := admin.Cancel(h.ctx(), h.Store, id, 0, stop, "me", ignoreLease)
	h.is.NoErr(err)
	if c.Ended == nil {
		return nil
	}
	delete(h.held, id)
	return store.Lines(c.Ended.Kind, c.Ended.Subject, c.Ended.Key)
}

func (h *keyHistory) nice() []store.Line {
	if id := h.waitingJob(false); id != 0 {
		priority := pick(h.r, 5, 10, 20)
		h.note("%d to %d", id, priority)
		h.is.NoErr(admin.SetPriority(h.ctx(), h.Store, id, priority, false, "me"))
	}
	return nil
}

func (h *keyHistory) move() []store.Line {
	m := admin.Moving{From: "default", To: "side", Kinds: pick(h.r, nil, []string{"k"}, []string{"few"})}
	if h.r.IntN(2) == 0 {
		m.From, m.To = m.To, m.From
	}
	h.note("%+v", m)
	_, _, err := admin.Move(h.ctx(), h.Store, m, "me")
	h.is.NoErr(err)
	return nil
}

func (h *keyHistory) podDies() (lines []store.Line) {
	i := h.r.IntN(len(h.pods))
	gone := h.pods[i]
	h.pods[i] = h.pod(uuid.NewString())
	h.lapse(gone)
	h.is.NoErr(second(store.CloseLapsed(h.ctx(), h.Store, h.pods[i], lease, time.Time{})))
	podIDs, err := store.SweepsDue(h.ctx(), h.Store)
	h.is.NoErr(err)
	page, err := store.RecoverPage(h.ctx(), h.Store, podIDs, 0, 10_000, 3)
	h.is.NoErr(err)
	h.is.NoErr(store.Swept(h.ctx(), h.Store, podIDs))
	for id, c := range h.held {
		if c.pod == gone {
			delete(h.held, id)
		}
	}
	h.note("%d again, %d ended", page.Pending, len(page.Ended))
	return page.Lines
}

// limit sets, changes or removes a limit. The polls admit the jobs for which there are places now.
func (h *keyHistory) limit() []store.Line {
	key := pick(h.r, "*", "a", "b")
	scope, name := "lane", pick(h.r, "default", "side")
	if h.r.IntN(3) == 0 {
		scope, name = "kind", pick(h.r, "k", "few")
	}
	slots := pick(h.r, nil, ptr(1), ptr(1), ptr(2), ptr(3))
	weight := pick(h.r, nil, nil, ptr(2))
	h.exec(`delete from trapeze.limits where scope = $1 and name = $2 and key = $3`, scope, name, key)
	if slots != nil || weight != nil {
		h.exec(`insert into trapeze.limits (scope, name, key, slots, weight) values ($1, $2, $3, $4, $5)`, scope, name, key, slots, weight)
	}
	text, _ := json.Marshal([]any{slots, weight})
	h.note("%s %s key %s: %s", scope, name, key, text)
	h.check("after the limit")
	h.is.NoErr(second(h.AdmitMissed(h.ctx())))
	return nil
}

// lane closes or opens a lane, or changes its slots. The polls admit the jobs that may run now.
func (h *keyHistory) lane() []store.Line {
	slots, drained := pick(h.r, nil, ptr(1), ptr(8)), h.r.IntN(3) == 0
	h.note("side, drained %v", drained)
	h.exec(`update trapeze.lanes set slots = $1, drained = $2 where name = 'side'`, slots, drained)
	h.check("after the lane")
	h.is.NoErr(second(h.AdmitMissed(h.ctx())))
	return nil
}

func (h *keyHistory) again() []store.Line {
	ids, err := store.Rows(h.ctx(), h.Store, pgx.RowTo[int64], `select id from trapeze.done where state in ('failed', 'cancelled') order by id desc limit 5`)
	h.is.NoErr(err)
	if len(ids) > 0 {
		id := pick(h.r, ids...)
		h.note("%d", id)
		h.is.NoErr(second(admin.Retry(h.ctx(), h.Store, id, nil, "me")))
	}
	return nil
}
