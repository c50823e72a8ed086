package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// ears listens on channels and returns which of them received wake-ups.
type ears struct {
	w    *world
	conn *pgx.Conn
}

func (w *world) listen(channels ...string) *ears {
	w.t.Helper()
	conn, err := pgx.ConnectConfig(w.ctx(), w.pool.Config().ConnConfig)
	w.is.NoErr(err)
	w.t.Cleanup(func() { conn.Close(context.Background()) })
	for _, name := range append(channels, "end") {
		_, err := conn.Exec(w.ctx(), "listen "+pgx.Identifier{name}.Sanitize())
		w.is.NoErr(err)
	}
	return &ears{w, conn}
}

// heard returns the channels that have received notifications since the previous call, sorted.
func (e *ears) heard() (channels []string) {
	e.w.t.Helper()
	e.w.exec(`select pg_notify('end', '')`) // notifications arrive in the order of their commits
	ctx, cancel := context.WithTimeout(e.w.ctx(), time.Minute)
	defer cancel()
	for {
		note, err := e.conn.WaitForNotification(ctx)
		e.w.is.NoErr(err)
		if note.Channel == "end" {
			slices.Sort(channels)
			return channels
		}
		channels = append(channels, note.Channel)
	}
}

// fleet registers n pods named pod-0 to pod-9, with the given kinds. Each listens on a channel of its name and has eight free slots.
func (w *world) fleet(n int, kinds ...string) (boots, names []string) {
	w.t.Helper()
	for i := range n {
		boot, name := uuid.NewString(), fmt.Sprintf("%s-%d", kinds[0], i)
		w.is.NoErr(w.Register(w.ctx(), store.PodInfo{Boot: boot, Name: name, Kinds: kinds, Slots: 8}, lease))
		w.reach(boot, name, 8)
		boots, names = append(boots, boot), append(names, name)
	}
	return boots, names
}

// reach sends the heartbeat of a pod that listens on a channel and has free slots.
func (w *world) reach(boot, channel string, free int) {
	w.t.Helper()
	_, err := w.Heartbeat(w.ctx(), boot, lease, store.Report{Reach: &store.Reach{Channel: channel, FreeSlots: free}})
	w.is.NoErr(err)
}

// wakeUp wakes pods for jobs of kind k.
func (w *world) wakeUp(lane string, jobs int) {
	w.t.Helper()
	w.is.NoErr(store.NotifyJobs(w.ctx(), w.Store, w.pool, "", []store.Claimable{{Lane: lane, Kind: "k", Jobs: jobs}}))
}

func TestAWakeUpReachesTwoPodsThatCanRunTheJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boots, names := w.fleet(8, "k", "j")
	_, others := w.fleet(2, "other")
	e := w.listen(slices.Concat(names, others, []string{w.Channel()})...)
	for i, boot := range boots {
		switch i {
		case 0, 1, 2:
			w.reach(boot, names[i], 0) // no free slots
		case 3:
			w.reach(boot, "", 8) // does not listen
		case 4:
			w.exec(`update trapeze.pods set draining = true where boot = $1`, boot)
		}
	}
	seen := map[string]bool{}
	for range 50 {
		w.wakeUp("default", 1)
		heard := e.heard()
		w.is.Equal(len(heard), 2)
		for _, name := range heard {
			seen[name] = true
			w.is.True(slices.Contains(names[5:], name)) // the pod handles the kind, has a free slot, listens, and is not draining
		}
	}
	w.is.Equal(len(seen), 3) // all of them have their turn
	w.wakeUp("default", 17)
	w.is.Equal(e.heard(), names[5:]) // 17 jobs do not fit into two pods of eight slots
	w.is.NoErr(store.NotifyJobs(w.ctx(), w.Store, w.pool, boots[5], []store.Claimable{{Lane: "default", Kind: "k", Jobs: 1}}))
	w.is.Equal(e.heard(), names[6:]) // the caller's own pod needs no notification
	w.exec(`update trapeze.pods set free_slots = 0`)
	w.wakeUp("default", 100)
	w.is.Equal(len(e.heard()), 2) // of a busy fleet, two pods learn that jobs are waiting
	w.exec(`update trapeze.pods set lease_until = now() - interval '1 second' where boot <> $1`, boots[0])
	w.wakeUp("default", 1)
	w.is.Equal(e.heard(), names[:1])
}

// While pods are replaced by those of the next release, the jobs of either may be submitted by the other.
func TestAWakeUpReachesPodsOfThePreviousRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.listen(w.Channel())
	w.pod("old")
	w.exec(`update trapeze.pods set wake_channel = null`)
	w.wakeUp("default", 1)
	w.is.Equal(e.heard(), []string{w.Channel()})
	var ids []int64
	for _, id := range w.put(plain) {
		ids = append(ids, id)
	}
	w.is.Equal(len(ids), 1)
	w.exec(`select trapeze.enqueue('k', '{}')`)
	w.is.Equal(e.heard(), []string{w.Channel()})
}

func TestAWakeUpForALimitedLaneReachesThePodsThatCanStartTheJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boots, names := w.fleet(6, "k")
	e := w.listen(names...)
	w.exec(`insert into trapeze.lanes (name, slots_per_pod) values ('each', 1)`)
	w.wakeUp("each", 1)
	w.is.Equal(e.heard(), names) // any of the pods may be the one with a free slot in the lane
	w.exec(`insert into trapeze.lanes (name, slots, granted) values ('full', 2, 2)`)
	w.exec(`insert into trapeze.slot_grants (lane, boot, slots) values ('full', $1, 1), ('full', $2, 1), ('full', $3, 0)`, boots[0], boots[1], boots[2])
	for range 10 {
		w.wakeUp("full", 1)
		heard := e.heard()
		w.is.True(slices.Contains(heard, names[0]) && slices.Contains(heard, names[1])) // only they can start a job
		w.is.True(len(heard) <= 4)
	}
}

// A change of grants concerns the pods that wait for slots, in their order, and those that hold more than their share.
func TestAChangeOfGrantsReachesThePodsThatWaitOrHoldTooMuch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boots, names := w.fleet(6, "k") // the share of each is one slot
	e := w.listen(names...)
	grant := func(lane string, i, slots int, waits bool) {
		w.exec(`insert into trapeze.slot_grants (lane, boot, slots, wants_since)
			values ($1, $2, $3, case when $4 then now() + $5 * interval '1 ms' end)`, lane, boots[i], slots, waits, i)
	}
	w.exec(`insert into trapeze.lanes (name, slots, granted) values ('taken', 6, 6), ('spare', 6, 5), ('rest', 6, 5)`)
	grant("taken", 0, 5, false)
	grant("taken", 1, 1, false)
	grant("taken", 2, 0, true)
	w.is.NoErr(store.NotifyLanes(w.ctx(), w.Store, boots[2], []string{"taken"}))
	w.is.Equal(e.heard(), names[:1]) // the holder of more than its share
	for i := range 5 {
		grant("spare", i, 1, false)
	}
	w.exec(`update trapeze.slot_grants set wants_since = now() where lane = 'spare' and boot = $1`, boots[4])
	grant("spare", 5, 0, true)
	w.is.NoErr(store.NotifyLanes(w.ctx(), w.Store, boots[0], []string{"spare"}))
	w.is.Equal(e.heard(), names[4:]) // one slot is free: the first in the queue, and the next in case that the first no longer waits
	for i := range 5 {
		grant("rest", i, 1, false)
	}
	w.is.NoErr(store.NotifyLanes(w.ctx(), w.Store, boots[0], []string{"rest"}))
	w.is.Equal(len(e.heard()), 2) // no pod waits, but a holder may want more than its share
}

// A pod that was woken and has no free slot wakes others. That must end when all pods are busy.
func TestAWakeUpIsPassedOnUntilNoPodReportsAFreeSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boots, names := w.fleet(6, "k")
	e := w.listen(names...)
	w.is.NoErr(store.PassOn(w.ctx(), w.Store, boots[:1], false))
	heard := e.heard()
	w.is.Equal(len(heard), 2)
	w.is.True(!slices.Contains(heard, names[0]))
	w.is.NoErr(store.PassOn(w.ctx(), w.Store, boots[:1], false))
	w.is.Equal(len(e.heard()), 0) // it has passed one on since it last reported a free slot
	w.is.NoErr(store.PassOn(w.ctx(), w.Store, boots[1:5], false))
	w.is.Equal(e.heard(), names[5:]) // the last pod with free slots
	w.is.NoErr(store.PassOn(w.ctx(), w.Store, boots[5:], false))
	w.is.Equal(len(e.heard()), 0)
	w.reach(boots[3], names[3], 1)
	w.is.NoErr(store.PassOn(w.ctx(), w.Store, boots[5:], true)) // a pod that is about to stop passes on what may have just reached it
	w.is.Equal(e.heard(), names[3:4])
	w.wakeUp("default", 100)
	w.is.True(!slices.Contains(e.heard(), names[5])) // and is not woken again
}
