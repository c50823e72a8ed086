package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestBoardWaitingReasons(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.pod("web-1")
	blocker := w.put(about("travel"))[0]
	w.claimOne(pod)
	w.put(about("travel"), about("travel"), plain, func(n *store.NewJob) { n.Kind = "nobody" },
		func(n *store.NewJob) { n.DelayMillis = time.Hour.Milliseconds() }, func(n *store.NewJob) { n.NeedsApproval = true })

	due, parked, err := view.BoardWaiting(w.ctx(), w.Store, 100, 100, 100)
	w.is.NoErr(err)
	why := map[string]view.BoardWait{}
	for _, group := range append(due, parked...) {
		why[group.Why] = group
	}
	w.is.Equal(len(why), 5)
	w.is.Equal(why["subject"].Jobs, 2) // both jobs are waiting for the subject
	w.is.Equal(why["subject"].Subject, "travel")
	w.is.Equal(*why["subject"].Blocker, blocker) // the group names the job that the others are waiting for
	w.is.Equal(why["due"].Jobs, 1)
	w.is.True(why["due"].Since != nil)
	w.is.Equal(why["no_handler"].Kind, "nobody")
	w.is.True(why["scheduled"].Since.After(time.Now())) // the group reports when the job becomes due
	w.is.Equal(why["approval"].Jobs, 1)

	w.exec(`update trapeze.pods set drained = true`)
	due, _, err = view.BoardWaiting(w.ctx(), w.Store, 100, 100, 100)
	w.is.NoErr(err)
	for _, group := range due {
		w.is.True(group.Why == "no_handler" || group.Why == "pods_drained") // for kind k, the pods are drained
	}
	approvals, err := view.BoardApprovals(w.ctx(), w.Store, 10)
	w.is.NoErr(err)
	w.is.Equal(len(approvals), 1)
	w.is.Equal(approvals[0].ID, why["approval"].First)
}

func TestBoardJobCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.pod("web-1")
	w.put(plain, plain, plain, plain, plain)
	running := w.claims(pod, 2)

	limits := view.StatusLimits{Waiting: 2, Pods: 10, Running: 10}
	now, err := view.StatusUpTo(w.ctx(), w.Store, limits)
	w.is.NoErr(err)
	w.is.Equal(now.Lanes[0].Name, "default")
	w.is.Equal(now.Lanes[0].Waiting, 2) // only two of the three waiting jobs are counted, because of the limit
	w.is.True(now.Lanes[0].Oldest != nil)
	w.is.Equal(now.Queue, job.QueueState{})
	w.is.Equal(len(now.Pods), 1)
	w.is.True(!now.Pods[0].Drained)
	w.is.Equal([]int{len(now.Running), now.Lanes[0].Running, now.Pods[0].Running}, []int{2, 2, 2})
	slots, err := view.SlotsInUse(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(slots, []view.BoardSlots{{Lane: "default", Pod: pod, Running: 2}})
	limits.Running = 1
	now, err = view.StatusUpTo(w.ctx(), w.Store, limits)
	w.is.NoErr(err)
	w.is.Equal(len(now.Running), 1)
	w.is.Equal(now.Running[0].Job, running[0].ID) // the longest-running job comes first
	w.is.Equal(now.Running[0].Pod, "web-1")
	w.is.Equal([]int{now.Lanes[0].Running, now.Pods[0].Running}, []int{2, 2}) // jobs beyond the limit are still counted
}

// Without the row, heartbeats report that the queue is paused, so every view must report the same.
func TestViewsWithoutQueueStateRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("web-1")
	w.exec(`delete from trapeze.queue_state`)
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.True(beat.Paused)
	status, err := view.ReadStatus(w.ctx(), w.Store)
	w.is.NoErr(err)
	fleet, err := view.StatusUpTo(w.ctx(), w.Store, view.StatusLimits{Waiting: 1, Pods: 1, Running: 1})
	w.is.NoErr(err)
	for _, now := range []job.Fleet{status, fleet} {
		w.is.Equal(now.Queue, job.QueueState{Paused: true})
		w.is.True(now.Lanes[0].Paused && !now.Lanes[0].Frozen)
	}
	lanes, err := view.Lanes(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.True(lanes[0].Paused)
	states, err := view.LaneStates(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(states), len(lanes)) // the doctor examines each lane
	w.is.True(states[0].Paused && !states[0].Frozen)
	w.is.Equal(w.blockersOf(w.put(plain)[0]), []job.BlockerType{job.BlockerPaused})
}

func TestBoardRemoteWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("web-1")
	worker := uuid.NewString()
	for range 2 { // the second stream takes over the row
		_, err := store.OpenWorker(w.ctx(), w.Store, store.PodInfo{PodID: worker, Name: "gpu-1", Kinds: []string{"k"}, Slots: 2}, "gpu", []byte("a key"), []byte("[]"), lease)
		w.is.NoErr(err)
	}

	fleet, err := view.StatusUpTo(w.ctx(), w.Store, view.StatusLimits{Pods: 10})
	w.is.NoErr(err)
	shown := fleet.Pods
	w.is.Equal([]string{shown[0].Name, *shown[0].Owner}, []string{"gpu-1", "gpu"})
	w.is.Equal(*shown[0].Stream, int64(2))
	w.is.Equal(shown[1].Owner, nil) // web-1 is not a remote worker
	now, err := view.ReadStatus(w.ctx(), w.Store)
	w.is.NoErr(err)
	remote := map[string]bool{}
	for _, p := range now.Pods {
		remote[p.Name] = p.Remote
		w.is.Equal(p.Remote, p.Owner != nil && p.Stream != nil) // both fields are set for remote workers only
	}
	w.is.Equal(remote, map[string]bool{"web-1": false, "gpu-1": true})
	health, err := view.ReadPodHealth(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal([]bool{health[0].Remote, health[1].Remote}, []bool{true, false}) // gpu-1 is a remote worker, and web-1 is not
}
