package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func approval(n *store.NewJob) { n.NeedsApproval = true }

func TestClaimAfterApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	list := w.new(approval, plain)
	list[0].Starts, list[0].Subject, list[0].Submitter = true, "s", "ann"
	places, err := w.Enqueue(w.ctx(), podID, list)
	w.is.NoErr(err)
	id := list[0].ID
	w.is.Equal(places[id], store.PlacedAwaiting) // the job is not started on insert, even though it requested to be
	j := w.at(id)
	w.is.Equal([]any{j.State, *j.Reason, j.Fence}, []any{job.AwaitingApproval, job.Reason("approval"), int64(0)})
	w.is.Equal(idsOf(w.claims(podID, 5)), []int64{list[1].ID})
	w.promote(0)
	beat, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(beat.NextDue, nil) // a job that awaits approval has no due time

	w.is.NoErr(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob"))
	w.is.Equal(w.at(id).State, job.Pending)
	w.is.True(errors.Is(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob"), job.ErrNotAwaitingApproval)) // a second approval is rejected
	w.promote(1)
	c := w.claimOne(podID)
	w.is.Equal([]int64{c.ID, c.Fence, int64(c.Attempt)}, []int64{id, 1, 1})
	w.is.True(time.Since(c.ReadyAt) < time.Minute) // the job's age is measured from the approval
	w.is.True(errors.Is(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob"), job.ErrNotAwaitingApproval))
	w.is.True(errors.Is(admin.Approve(w.ctx(), w.Store, 1<<40, admin.Approval{}, "bob"), job.ErrNotFound))
	w.end(podID, ending(c))
	list2, err := view.JobEvents(w.ctx(), w.Store, id, 0, 10)
	w.is.NoErr(err)
	w.is.Equal([]any{list2[0].To, list2[1].Event, list2[1].From, list2[1].To, list2[1].Actor},
		[]any{job.AwaitingApproval, "job.approved", job.AwaitingApproval, job.Pending, "bob"})
}

func TestConcurrentApprovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.put(approval)[0]
	release := w.freeze(`select from trapeze.parked for update`)
	approve := func() (int, error) { return 0, admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob") }
	x, y := async(approve), async(approve)
	w.waiting(2)
	release(true)
	errs := []error{second(x()), second(y())}
	w.is.Equal(slices.IndexFunc(errs, func(err error) bool { return err == nil }) >= 0, true)
	w.is.True(slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, job.ErrNotAwaitingApproval) }))
	w.is.Equal(w.count(`select count(*) from trapeze.job_event where event = 'job.approved'`), 1)
}

func TestApprovalOfStaleEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.put(approval)[0]
	cancel := func(epoch int) error {
		_, err := admin.Cancel(w.ctx(), w.Store, id, epoch, false, "bob", ignoreLease)
		return err
	}
	for _, only := range []admin.Approval{{Epoch: 1}, {Epoch: 1, Second: true}} {
		w.exec(`update trapeze.parked set epoch = 1 where id = $1`, id)
		// The submitter cancels the job and retries it while the approval waits for the row.
		release := w.freeze(`with gone as (delete from trapeze.parked where id = $1 returning *)
			insert into trapeze.parked (id, why, run_after, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated, unique_while, lane, kind, subject)
			select id, why, run_after, started_at, fence, event_no, epoch + 1, attempt, crashes, priority, isolated, unique_while, lane, kind, subject from gone`, id)
		approves := async(func() (int, error) { return 0, admin.Approve(w.ctx(), w.Store, id, only, "bob") })
		rejects := async(func() (int, error) { return 0, cancel(1) })
		w.waiting(2)
		release(true)
		w.is.True(second(approves()) != nil)
		w.is.True(errors.Is(second(rejects()), job.ErrConflict))
		w.is.Equal(w.at(id).State, job.AwaitingApproval)
		w.is.True(errors.Is(admin.Approve(w.ctx(), w.Store, id, only, "bob"), job.ErrConflict))
	}
	w.is.NoErr(admin.Approve(w.ctx(), w.Store, id, admin.Approval{Epoch: 2}, "bob"))
	w.is.True(errors.Is(cancel(1), job.ErrConflict)) // the cancel is still rejected after the approval
	w.is.NoErr(cancel(2))
	w.is.True(errors.Is(cancel(1), job.ErrAlreadyTerminal))
}

func TestApprovalLaneNonExemptSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	before := w.put(plain)[0]
	w.exec(`update trapeze.lanes set requires_approval = true`)
	awaits := w.put(plain)[0]
	w.is.Equal(w.at(awaits).State, job.AwaitingApproval) // the lane's rule applies immediately, even if this process has not read it yet
	inTx := w.new(plain)
	w.is.NoErr(pgx.BeginFunc(w.ctx(), w.pool, func(tx pgx.Tx) error {
		places, err := store.EnqueueIn(w.ctx(), w.Store, tx, inTx, false)
		w.is.Equal(places[inTx[0].ID], store.PlacedAwaiting)
		return err
	}))
	c := w.claimOne(podID)
	w.is.Equal(c.ID, before) // a job that was already in the lane needs no approval
	next := w.new(then(c))[0]
	next.Approved = true
	end, ok := w.end(podID, endingWith(c, next))
	w.is.True(ok && end.ChildRunning) // an exempt step does not need approval
	child := &store.Claimed{ID: next.ID, Fence: 1, Definition: store.Definition{PipelineID: next.PipelineID}}
	entering := w.new(then(child))[0]
	end, ok = w.end(podID, endingWith(child, entering))
	w.is.True(ok && !end.ChildRunning) // a step that is not exempt is not started on insert
	w.is.Equal(w.at(entering.ID).State, job.AwaitingApproval)
	w.exec(`update trapeze.lanes set requires_approval = false`)
	w.is.Equal(w.at(awaits).State, job.AwaitingApproval) // the rule in effect at the time of submission applies
	w.is.Equal(w.at(w.put(plain)[0]).State, job.Pending)
}

func TestBulkInApprovalLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name, requires_approval) values ('careful', true)`)
	changes := make([]func(*store.NewJob), store.BulkFrom)
	for i := range changes {
		changes[i] = plain
	}
	changes[store.BulkFrom-1] = func(n *store.NewJob) { n.Lane = "careful" }
	list := w.new(changes...)
	w.is.True(store.Bulky(list))
	done, err := store.EnqueueBulk(w.ctx(), w.Store, list)
	w.is.NoErr(err)
	w.is.True(!done)
	w.is.Equal(w.count(`select count(*) from trapeze.jobs`), 0) // nothing was inserted
	places, err := w.Enqueue(w.ctx(), uuid.NewString(), list)
	w.is.NoErr(err)
	w.is.Equal(places[list[0].ID], store.PlacedPending)
	w.is.Equal(places[list[store.BulkFrom-1].ID], store.PlacedAwaiting)
	list[0].NeedsApproval = true
	w.is.True(!store.Bulky(list))
}

func TestApprovedJobDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	delayed := func(n *store.NewJob) { n.NeedsApproval, n.DelayMillis = true, 3_600_000 }
	early, late := w.put(delayed)[0], w.put(delayed)[0]
	w.is.NoErr(admin.Approve(w.ctx(), w.Store, early, admin.Approval{}, "bob"))
	j := w.at(early)
	w.is.Equal([]any{j.State, *j.Reason}, []any{job.Pending, job.Reason("scheduled")})
	w.exec(`update trapeze.parked set run_after = now()`)
	w.promote(1)
	w.is.Equal(idsOf(w.claims(podID, 5)), []int64{early})
	w.is.NoErr(admin.Approve(w.ctx(), w.Store, late, admin.Approval{}, "bob"))
	w.promote(1)
	w.is.Equal(idsOf(w.claims(podID, 5)), []int64{late}) // the delay had passed before the approval
}

func TestUnapprovedJobExpiryFreesKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keyed := func(id int64) (holder int64) {
		w.is.NoErr(pgx.BeginFunc(w.ctx(), w.pool, func(tx pgx.Tx) (err error) {
			holder, err = store.ReserveKey(w.ctx(), w.Store, tx, "k", "key", id)
			if err == nil && holder == id {
				n := store.NewJob{ID: id, Kind: "k", Lane: "default", Args: []byte(`{}`), UniqueKey: ptr("key"), UniqueWhile: ptr("pending"), NeedsApproval: true}
				err = second(store.EnqueueIn(w.ctx(), w.Store, tx, []store.NewJob{n}, false))
			}
			return err
		}))
		return holder
	}
	ids, err := w.NewIDs(w.ctx(), 3)
	w.is.NoErr(err)
	w.is.Equal(keyed(ids[0]), ids[0])
	w.is.Equal(keyed(ids[1]), ids[0]) // the job keeps its key while it awaits approval
	fresh := w.put(approval)[0]
	w.exec(`update trapeze.parked set run_after = now() - interval '25 hours' where id = $1`, ids[0])

	release := w.freeze(`select from trapeze.parked where id = $1 for update`, ids[0])
	n, err := admin.Expire(w.ctx(), w.Store, 24*time.Hour, 10)
	w.is.NoErr(err)
	w.is.Equal(len(n), 0) // the row is locked
	release(false)
	n, err = admin.Expire(w.ctx(), w.Store, 24*time.Hour, 10)
	w.is.NoErr(err)
	w.is.Equal(n, []job.End{{ID: ids[0], PipelineID: ids[0], Kind: "k", Lane: "default", State: job.Cancelled, Reason: job.ReasonExpired,
		Error: "nobody approved it in time"}})
	j := w.at(ids[0])
	w.is.Equal([]any{j.State, *j.Reason}, []any{job.Cancelled, job.ReasonExpired})
	w.is.Equal(w.at(fresh).State, job.AwaitingApproval)
	w.is.True(errors.Is(admin.Approve(w.ctx(), w.Store, ids[0], admin.Approval{}, "bob"), job.ErrNotAwaitingApproval))
	w.is.Equal(keyed(ids[2]), ids[2]) // the key is free
}

func TestCancelJobAwaitingApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.put(approval)[0]
	c, err := admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	w.is.Equal(c.State, job.Cancelled)
	w.is.True(errors.Is(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob"), job.ErrNotAwaitingApproval))
	w.is.Equal(w.at(id).State, job.Cancelled)
}
