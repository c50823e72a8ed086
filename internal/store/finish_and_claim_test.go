package store_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// finishAndClaim ends claims of a pod and claims the same number of jobs of kind k in the same commit.
func (w *world) finishAndClaim(podID string, list []*store.Claimed, next ...*store.NewJob) (map[int64]store.Ended, store.Claims, error) {
	ends := make([]store.Ending, len(list))
	for i, c := range list {
		ends[i] = store.Ending{ID: c.ID, Fence: c.Fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK}
		if i < len(next) {
			ends[i].Next = next[i]
		}
	}
	return w.FinishAndClaim(w.ctx(), podID, ends, store.Want{Lane: "default", Ahead: len(list)}, []string{"k"}, true)
}

func TestFinishAndClaimCommit(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} { // covers both the statement for one job and the statement for many
		w := newWorld(t)
		podID := w.pod("a")
		ids := w.put(slices.Repeat([]func(*store.NewJob){plain}, 2*n+1)...)
		first := w.claims(podID, n)
		ended, found, err := w.finishAndClaim(podID, first)
		w.is.NoErr(err)
		w.is.Equal(len(ended), n)
		w.is.Equal(idsOf(found.Jobs), ids[n:2*n])
		for _, c := range found.Jobs {
			w.is.True(!c.Ahead) // the claimed jobs start immediately
			w.is.True(w.at(c.ID).StartedAt != nil)
		}
		w.is.Equal(w.count(`select count(distinct x) from (select xid from trapeze.done union all select claim_xid from trapeze.live where state = 'running') as t(x)`), 1)
	}
}

func TestFinishAndClaimBlockingJobs(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]func(*store.NewJob){
		"a subject": about("s"), "a unique key": func(n *store.NewJob) { while := "active"; n.UniqueWhile = &while },
	} {
		w := newWorld(t)
		podID := w.pod(name)
		ids := w.put(plain, plain, plain, other, plain)
		_, found, err := w.finishAndClaim(podID, w.claims(podID, 2))
		w.is.NoErr(err)
		w.is.Equal(idsOf(found.Jobs), ids[2:3]) // no later job overtakes the first one that cannot be claimed
	}
}

func TestARefusedEndClaimsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(plain, plain, plain)
	c := w.one(podID)
	_, _, err := w.finishAndClaim(podID, []*store.Claimed{c}, &store.NewJob{ID: ids[2], Kind: "k", Lane: "default", Args: json.RawMessage(`{}`)}) // the id of the next step is already in use
	w.is.True(store.Refused(err))
	w.is.Equal(w.at(c.ID).State, job.Running)
	w.is.Equal(w.at(ids[1]).State, job.Pending)
}

func TestFinishAndClaimLockedTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain, plain)
	c := w.one(podID)
	release := w.freeze(`lock table trapeze.job_progress in access exclusive mode`) // the claim reads this table
	_, _, err := w.finishAndClaim(podID, []*store.Claimed{c})
	w.is.True(store.Transient(err) && !store.Unknown(err))
	w.is.Equal(w.count(`select count(*) from trapeze.live where id = $1 and state = 'running'`, c.ID), 1) // the job has not ended, so it must be finished separately
	release(false)
}
