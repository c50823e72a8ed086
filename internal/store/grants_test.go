package store_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

// limited sets a slot limit on the default lane and enqueues a job in it.
func (w *world) limited(slots int) {
	w.t.Helper()
	w.exec(`update trapeze.lanes set slots = $1 where name = 'default'`, slots)
	w.put(plain)
	w.t.Cleanup(func() {
		w.is.Equal(w.count(`select granted from trapeze.lanes where name = 'default'`),
			w.count(`select coalesce(sum(slots), 0)::int from trapeze.slot_grants`)) // the lane's sum matches the slots that its pods hold
	})
}

// settle requests slots in the default lane.
func (w *world) settle(podID string, keep, wish, used int) store.Slots {
	w.t.Helper()
	held, err := store.SettleSlots(w.ctx(), w.Store, podID, []store.Ask{{"default", keep, wish, used}}, []string{"k"})
	w.is.NoErr(err)
	if len(held) == 0 {
		return store.Slots{Held: -1}
	}
	return held[0]
}

func TestLaneSlotGrants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.limited(3)
	w.is.Equal(w.settle(a, 2, 2, 0).Held, 2)
	w.is.Equal(w.settle(b, 4, 4, 0).Held, 1)                                       // pod b is granted the remaining slots
	w.is.Equal(w.settle(a, 2, 2, 0).Held, 2)                                       // repeating a request, for example after a lost reply, yields the same result
	w.is.Equal(w.settle(a, 0, 0, 0).Held, 0)                                       // pod a returns its slots
	w.is.Equal(w.settle(b, 4, 4, 1).Held, 3)                                       // the returned slots are available to pod b
	w.is.Equal(w.settle(b, 1, 1, 1).Held, 1)                                       // a pod can return slots at any time
	w.is.Equal(w.settle("00000000-0000-0000-0000-000000000001", 1, 1, 0).Held, -1) // a pod that is not open holds nothing
	w.exec(`update trapeze.lanes set slots = null where name = 'default'`)
	w.is.Equal(w.settle(b, 1, 4, 1).Held, -1) // a lane without a limit has no slots to hold
}

func TestSlotGrantsForWaitingJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	w.limited(3)
	held, err := store.SettleSlots(w.ctx(), w.Store, a, []store.Ask{{"default", 2, 2, 0}}, []string{"other"})
	w.is.NoErr(err)
	w.is.Equal(held[0].Held, 0) // this pod can run none of the waiting jobs
	w.is.True(!held[0].Work)
	w.is.Equal(w.settle(a, 2, 2, 0).Held, 2)
	heard := w.slotsHeard()
	w.is.Equal(w.settle(a, 1, 1, 0).Held, 1)
	w.is.Equal(heard(), []string{"*"}) // another pod can use the returned slot
	w.is.Equal(w.settle(a, 2, 2, 0).Held, 2)
	w.claims(a, 1)
	w.is.Equal(w.settle(a, 3, 3, 1).Held, 2) // without waiting jobs, the pod is granted no additional slots but keeps the ones that it holds
	w.is.Equal(w.settle(a, 1, 1, 1).Held, 1)
	w.is.Equal(len(heard()), 0) // no job waits for the returned slot
}

// slotsHeard listens for notifications about slots of the default lane. The function that it returns reads them, and returns the pods that
// were notified since the last call.
func (w *world) slotsHeard() func() []string {
	w.t.Helper()
	conn, err := w.pool.Acquire(w.ctx())
	w.is.NoErr(err)
	w.t.Cleanup(conn.Release)
	_, err = conn.Exec(w.ctx(), "listen "+w.AllChannel())
	w.is.NoErr(err)
	return func() (pods []string) {
		for {
			w.exec(`select pg_notify($1, 'end')`, w.AllChannel())
			for {
				note, err := conn.Conn().WaitForNotification(w.ctx())
				w.is.NoErr(err)
				podID, lane, ok := store.ParseSlots(note.Payload)
				if !ok {
					return pods
				}
				w.is.Equal(lane, "default")
				pods = append(pods, podID)
			}
		}
	}
}

// Slots that a pod returns are handed over to the pod that has waited longest, which is notified. The holder is notified when the first pod
// starts to wait.
func TestSlotHandOverInQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	w.limited(1)
	heard := w.slotsHeard()
	w.is.Equal(w.settle(a, 1, 1, 0), store.Slots{Lane: "default", Held: 1, Work: true})
	w.is.Equal(w.settle(b, 1, 1, 0), store.Slots{Lane: "default", Work: true})
	w.is.Equal(heard(), []string{a}) // b waits, and the holder is told
	w.is.Equal(w.settle(c, 1, 1, 0), store.Slots{Lane: "default", OthersWait: true, Work: true})
	w.is.Equal(w.settle(b, 1, 1, 0), store.Slots{Lane: "default", OthersWait: true, Work: true})
	w.is.True(w.settle(a, 1, 1, 1).OthersWait)
	w.is.Equal(len(heard()), 0)                                                                  // the holder knows already
	w.is.Equal(w.settle(a, 0, 1, 0), store.Slots{Lane: "default", OthersWait: true, Work: true}) // a returns its slot, and wants it back
	w.is.Equal(heard(), []string{b})                                                             // b came first
	w.is.Equal(w.settle(c, 1, 1, 0).Held, 0)
	w.is.Equal(w.settle(b, 1, 1, 0), store.Slots{Lane: "default", Held: 1, OthersWait: true, Work: true})
	w.settle(b, 0, 1, 0)
	w.is.Equal(heard(), []string{c}) // c came before a
	w.is.Equal(w.settle(c, 1, 1, 0).Held, 1)
	w.settle(c, 0, 0, 0)
	w.is.Equal(heard(), []string{a}) // a came before b
	w.is.Equal(w.settle(b, 1, 1, 0).Held, 0)
	w.is.Equal(w.settle(a, 1, 1, 0).Held, 1)
	w.settle(b, 0, 0, 0) // b leaves the queue
	w.settle(a, 0, 0, 0)
	w.is.Equal(heard(), []string{"*"}) // no pod waits for the slot, but a job does
}

// Returned slots go first to pods with less than their share, then to the others in the queue. A pod that returns slots above its share gets
// back those that no other pod needs.
func TestSlotHandOverBelowShareFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	w.limited(6) // the share is two
	w.is.Equal(w.settle(b, 2, 2, 0).Held, 2)
	w.is.Equal(w.settle(a, 5, 5, 0), store.Slots{Lane: "default", Held: 4, Share: 2, Work: true})
	w.is.Equal(w.settle(b, 3, 3, 0).Held, 2) // b has its share, and wants more
	heard := w.slotsHeard()
	w.is.Equal(w.settle(c, 1, 1, 0), store.Slots{Lane: "default", Share: 2, Work: true})
	w.is.Equal(heard(), []string{a}) // only a has more than its share
	w.is.Equal(w.settle(a, 2, 5, 0), store.Slots{Lane: "default", Held: 2, Share: 2, Work: true})
	w.is.Equal(w.settle(b, 3, 3, 0).Held, 3)
	w.is.Equal(w.settle(c, 1, 1, 0).Held, 1)
	w.is.Equal(w.settle(c, 0, 0, 0).Held, 0)
	w.is.Equal(w.settle(a, 5, 5, 0).Held, 3)
	w.is.Equal(w.settle(a, 2, 5, 0).Held, 3) // no other pod needs the slot
}

func TestClosedPodSlotRecovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.limited(2)
	w.settle(a, 1, 1, 0)
	w.settle(b, 1, 1, 0)
	lanes, err := store.VoidSlots(w.ctx(), w.Store, []string{a})
	w.is.NoErr(err)
	w.is.Equal(len(lanes), 0)
	w.is.NoErr(w.Leave(w.ctx(), a))
	lanes, err = store.VoidSlots(w.ctx(), w.Store, []string{a, b})
	w.is.NoErr(err)
	w.is.Equal(lanes, []string{"default"})
	w.is.Equal(w.settle(a, 1, 1, 0).Held, -1)
	w.is.Equal(w.settle(b, 2, 2, 0).Held, 2)
}

func TestLaneLimitLowered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.limited(4)
	w.is.Equal(w.settle(a, 4, 4, 0).Held, 4)
	w.exec(`update trapeze.lanes set slots = 2 where name = 'default'`)
	w.is.Equal(w.settle(b, 1, 1, 0).Held, 0)
	w.is.Equal(w.settle(a, 3, 3, 3).Held, 3) // the jobs are still running
	w.is.Equal(w.settle(a, 2, 3, 2).Held, 2)
	w.is.Equal(w.settle(b, 1, 1, 0).Held, 0)
	w.is.Equal(w.settle(a, 1, 3, 1).Held, 1)
	w.is.Equal(w.settle(b, 1, 1, 0).Held, 1)
	w.is.Equal(w.settle(b, 3, 3, 3).Held, 3) // jobs running without a grant are counted, for example after a limit has just been set
}

func TestSlotsHeldAboveLaneLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	overfull := func(podID string) bool {
		beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
		w.is.NoErr(err)
		return beat.Lanes[0].Over
	}
	w.limited(2)
	w.is.Equal(w.settle(a, 1, 1, 1).Over, false)
	w.is.Equal(w.settle(b, 1, 1, 1).Over, false)
	w.is.True(!overfull(a))
	w.exec(`update trapeze.lanes set slots = 1 where name = 'default'`)
	w.is.True(overfull(a) && overfull(b)) // both pods report that the lane is over its limit, because neither can tell which of them must return slots
	w.is.True(w.settle(a, 1, 1, 1).Over)  // the pods together are still over the limit
	w.is.True(!w.settle(b, 0, 1, 0).Over) // a returned slot counts immediately
	w.is.True(!overfull(a))               // the remaining holder may use its slot
	w.is.True(w.settle(b, 2, 2, 2).Over)  // jobs running without a grant are also counted
	w.exec(`update trapeze.lanes set slots = null where name = 'default'`)
	w.is.True(!overfull(a)) // without a limit, no pod can be over it
}

// A request whose connection was abandoned can still reach the server long after a later request was answered.
func TestLateSlotRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.limited(3)
	w.is.Equal(w.settle(a, 3, 3, 0).Held, 3)
	late := w.Asked().Add(1) // this request returns two slots, and arrives late
	w.is.Equal(w.settle(a, 3, 3, 1).Held, 3)
	held, err := store.Run(w.ctx(), w.Store, pgx.RowToStructByPos[store.Slots], store.SettleSlotsSQL, store.By("pod", a, "lanes", []string{"default"},
		"keeps", []int32{1}, "wishes", []int32{1}, "used", []int32{1}, "kinds", []string{"k"}, "channel", w.AllChannel(), "asked", late))
	w.is.NoErr(err)
	w.is.Equal(len(held), 0)
	w.is.Equal(w.settle(b, 1, 1, 0).Held, 0) // the first pod keeps its three slots
	w.is.Equal(w.settle(a, 1, 3, 1).Held, 2) // a returns two slots, of which b needs one
	w.is.Equal(w.settle(b, 1, 1, 0).Held, 1)
}

// Pods request and return slots concurrently, and some are closed in between. Meanwhile, snapshots are checked against the limit.
func TestConcurrentSlotRequestsLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const limit, pods, rounds = 5, 6, 60
	w.limited(limit)
	var asking sync.WaitGroup
	for n := range pods {
		podID := w.pod("pod")
		asking.Go(func() {
			is := is.New(w.t)
			random := rand.New(rand.NewPCG(uint64(n), 1))
			for round := range rounds {
				target := random.IntN(4)
				held, err := store.SettleSlots(context.WithoutCancel(w.t.Context()), w.Store, podID, []store.Ask{{"default", target, 3, 0}}, []string{"k"})
				is.NoErr(err)
				is.True(held[0].Held <= 3)
				if n == 0 && round%10 == 0 {
					is.NoErr(w.Leave(context.WithoutCancel(w.t.Context()), podID))
					_, err := store.VoidSlots(context.WithoutCancel(w.t.Context()), w.Store, []string{podID})
					is.NoErr(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { asking.Wait(); close(done) }()
	looks := 0
	for open := true; open; looks++ {
		select {
		case <-done:
			open = false
		default:
		}
		w.is.Equal(w.count(`select count(*) from trapeze.lanes l where l.slots is not null and (l.granted > l.slots or l.granted <>
			(select coalesce(sum(g.slots), 0) from trapeze.slot_grants g where g.lane = l.name))`), 0)
	}
	t.Logf("checked %d times", looks)
}

// If each tenant has a lane, a pod searches spans of lanes for jobs, and finds no more lanes than it can use.
func TestLaneSearchBySpans(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	put := func(lane, kind string) {
		w.put(func(j *store.NewJob) { j.Lane, j.Kind = lane, kind })
	}
	w.exec(`insert into trapeze.lanes (name, slots) select chr(96 + n), 2 from generate_series(1, 26) n`)
	for _, lane := range []string{"a", "b", "b", "e", "f", "h", "m", "z"} {
		put(lane, "k")
	}
	put("g", "other")
	w.exec(`update trapeze.live set state = 'running', pod = $1 where lane = 'm'`, w.pod("a"))
	defer w.exec(`update trapeze.live set state = 'pending', pod = null where lane = 'm'`)
	for _, c := range []struct {
		spans []store.Span
		most  int
		want  string
	}{
		{[]store.Span{{"", "z"}}, 9, "abefhz"},
		{[]store.Span{{"", "z"}}, 3, "abe"},
		{[]store.Span{{"a", "e"}}, 9, "be"},
		{[]store.Span{{"f", "z"}, {"", "e"}}, 4, "hzab"}, // the search starts after f and then continues from the beginning
		{[]store.Span{{"h", "m"}, {"b", "c"}, {"n", "t"}}, 9, ""},
		{[]store.Span{{"b", "c"}, {"e", "g"}, {"y", "z"}}, 9, "fz"},
		{nil, 9, ""},
		{[]store.Span{{"", "z"}}, 0, ""},
	} {
		found, err := store.LanesWithWork(w.ctx(), w.Store, c.spans, []string{"k"}, c.most)
		w.is.NoErr(err)
		if got := strings.Join(found, ""); got != c.want {
			t.Errorf("in %v, at most %d: %q, want %q", c.spans, c.most, got, c.want)
		}
	}
}
