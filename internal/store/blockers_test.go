package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// why returns the types of a job's blockers.
func (w *world) blockersOf(id int64) (list []job.BlockerType) {
	w.t.Helper()
	found, err := view.Blockers(w.ctx(), w.Store, id, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, w.Store) })
	w.is.NoErr(err)
	for _, o := range found {
		w.is.True(o.Says != "")        // each blocker has a description
		w.is.True(o.Why.Words() != "") // each type has a name
		list = append(list, o.Why)
	}
	return list
}

func TestWaitingJobBlockers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	only := func(why ...job.BlockerType) []job.BlockerType { return why }
	early := w.put(plain)[0]
	w.is.Equal(w.blockersOf(early), only(job.BlockerNoPods))
	pod := w.pod("web-1")
	w.is.Equal(w.blockersOf(early), only(job.BlockerDue)) // nothing blocks the job
	w.claimOne(pod)
	w.is.Equal(len(w.blockersOf(early)), 0) // the job is running
	w.is.Equal(len(w.blockersOf(1<<60)), 0) // the job does not exist

	blocker := w.put(about("travel"))[0]
	w.claimOne(pod)
	ids := w.put(about("travel"), func(n *store.NewJob) { n.Kind = "nobody" }, func(n *store.NewJob) { n.DelayMillis = time.Hour.Milliseconds() },
		func(n *store.NewJob) { n.NeedsApproval = true }, plain)
	busy, unknown, later, asks, free := ids[0], ids[1], ids[2], ids[3], ids[4]
	list, err := view.Blockers(w.ctx(), w.Store, busy, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, w.Store) })
	w.is.NoErr(err)
	w.is.Equal(list[0].Why, job.BlockerSubject)
	w.is.Equal(*list[0].JobID, blocker) // the blocker names the running job
	w.is.Equal(w.blockersOf(unknown), only(job.BlockerNoHandler))
	list, err = view.Blockers(w.ctx(), w.Store, later, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, w.Store) })
	w.is.NoErr(err)
	w.is.Equal(list[0].Why, job.BlockerScheduled)
	w.is.True(list[0].Until.After(time.Now()))
	list, err = view.Blockers(w.ctx(), w.Store, asks, func(ctx context.Context) ([]view.BoardSlots, error) { return view.SlotsInUse(ctx, w.Store) })
	w.is.NoErr(err)
	w.is.Equal(list[0].Why, job.BlockerApproval)
	w.is.True(list[0].Do != "") // the blocker explains how to approve the job

	w.exec(`update trapeze.queue_state set paused = true`)
	w.is.Equal(w.blockersOf(free), only(job.BlockerPaused))
	w.exec(`update trapeze.queue_state set paused = true, frozen = true`)
	w.exec(`update trapeze.lanes set drained = true, enabled = false`)
	w.exec(`update trapeze.pods set drained = true`)
	w.is.Equal(w.blockersOf(later), only(job.BlockerScheduled, job.BlockerPaused, job.BlockerFrozen, job.BlockerDisabled, job.BlockerDrained,
		job.BlockerPodsDrained)) // all blockers are reported together
}

func TestDueJobSlotBlockers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.pod("web-1")
	w.put(plain, plain)
	w.claims(pod, 2)
	waits := w.put(plain)[0]
	for set, want := range map[string]job.BlockerType{
		`update trapeze.lanes set slots = 2`:         job.BlockerFullLane,
		`update trapeze.lanes set slots_per_pod = 2`: job.BlockerFullLane,
		`update trapeze.lanes set slots = 0`:         job.BlockerFullLane,
		`update trapeze.pods set slots = 2`:          job.BlockerFullPods,
		`update trapeze.live set isolated = true`:    job.BlockerIsolated,
	} {
		w.exec(set)
		w.is.Equal(w.blockersOf(waits), []job.BlockerType{want})
		w.exec(`update trapeze.lanes set slots = null, slots_per_pod = null`)
		w.exec(`update trapeze.pods set slots = 8`)
		w.exec(`update trapeze.live set isolated = false`)
	}
	asked := false
	w.exec(`update trapeze.lanes set drained = true`)
	_, err := view.Blockers(w.ctx(), w.Store, waits, func(context.Context) ([]view.BoardSlots, error) { asked = true; return nil, nil })
	w.is.NoErr(err)
	w.is.True(!asked) // the expensive query is skipped if its result does not matter
}
