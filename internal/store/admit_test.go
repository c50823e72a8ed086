package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

var subjectS = []store.Line{{Kind: "k", Subject: "s"}}

// inLane returns a change that sets a job's lane and subject.
func inLane(lane, subject string) func(*store.NewJob) {
	return func(n *store.NewJob) { n.Lane, n.Subject = lane, subject }
}

// side adds a second lane.
func (w *world) side() *world {
	w.exec(`insert into trapeze.lanes (name) values ('side')`)
	return w
}

// stands checks why a job waits: a reason to be parked, or pending.
func (w *world) stands(id int64, want string) {
	w.t.Helper()
	got, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[string], `select why from trapeze.parked where id = $1
		union all select state || case when isolated then ', isolated' else '' end from trapeze.live where id = $1`, id)
	w.is.NoErr(err)
	w.is.Equal(got, []string{want})
}

// yielded lets a subject's pending job yield, and returns whether it did.
func (w *world) yielded(keys []store.Line) bool {
	w.t.Helper()
	list, err := w.Yield(w.ctx(), keys)
	w.is.NoErr(err)
	return len(list) > 0
}

// admitted admits the next jobs of subjects, and returns their number.
func (w *world) admitted(keys []store.Line) int {
	w.t.Helper()
	a, err := w.Admit(w.ctx(), keys)
	w.is.NoErr(err)
	return len(a.Jobs)
}

// When one reason to wait ends, the next one takes its place. Nothing else about the job changes.
func TestPairsOfReasons(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		change func(*store.NewJob)
		why    string
		ends   func(w *world, id int64)
		want   string
	}{
		"scheduled": {func(n *store.NewJob) { n.DelayMillis = 3_600_000 }, "scheduled", func(*world, int64) {}, "pending"},
		"approval": {func(n *store.NewJob) { n.NeedsApproval = true }, "approval", func(w *world, id int64) {
			w.is.NoErr(admin.Approve(w.ctx(), w.Store, id, admin.Approval{}, "bob"))
		}, "pending"},
		"retry, isolated": {plain, "retry", func(w *world, id int64) {
			w.exec(`update trapeze.parked set isolated = true, crashes = 2, attempt = 1 where id = $1`, id)
		}, "pending, isolated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			id := w.put(func(n *store.NewJob) { n.Subject = "s"; one.change(n) })[0]
			if one.why == "retry" {
				_, err := w.Park(w.ctx(), leaseOf(podID, w.claimOne(podID)), time.Hour, store.Retry{Message: "boom"})
				w.is.NoErr(err)
			}
			w.stands(id, one.why)
			w.put(about("s"))
			holder := w.claimOne(podID)
			w.is.True(holder.ID != id)
			w.missed(0) // the first reason has not ended
			one.ends(w, id)
			w.exec(`update trapeze.parked set run_after = now() - interval '1 hour' where id = $1`, id)
			_, waiting, err := w.Promote(w.ctx(), 10)
			w.is.NoErr(err)
			w.is.Equal(waiting, subjectS)
			w.stands(id, "subject")
			w.is.Equal(w.at(id).State, job.Pending)
			w.missed(0)
			w.promote(0)
			w.end(podID, ending(holder))
			w.stands(id, one.want)
			c := w.claimOne(podID)
			w.is.Equal(c.ID, id)
			w.is.True(time.Since(c.ReadyAt) > 59*time.Minute) // the job has been due all the time
			w.end(podID, ending(c))
		})
	}
}

// A recovered job keeps the guard, so it stays ahead of its lane and of its subject's waiting jobs.
func TestIsolatedJobKeepsGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(func(n *store.NewJob) { n.Subject, n.MaxCrashes = "s", ptr(9) })[0]
	w.claimOne(a)
	waits := w.put(about("s"), plain)
	w.exec(`update trapeze.live set crashes = 1 where id = $1`, id)
	w.dies(a, b)
	w.stands(id, "pending, isolated")
	w.missed(0)
	w.is.Equal(w.at(waits[0]).State, job.Pending)
	w.is.Equal(idsOf(w.claims(b, 5)), []int64{id, waits[1]})
}

// One batch ends two jobs, each of which hands over to the subject of the other. Both next steps wait until the guards have been freed.
func TestBatchCrossingSubjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s1"), about("s2"))
	c := w.claims(podID, 2)
	steps := w.new(then(c[0], about(c[1].Subject)), then(c[1], about(c[0].Subject)))
	ended, err := w.Finish(w.ctx(), podID, []store.Ending{endingWith(c[0], steps[0]), endingWith(c[1], steps[1])})
	w.is.NoErr(err)
	w.is.Equal(len(ended), 2)
	w.stands(steps[0].ID, "subject")
	w.stands(steps[1].ID, "subject")
	w.is.Equal(w.admitted([]store.Line{{Kind: "k", Subject: "s2"}, {Kind: "k", Subject: "s1"}}), 2)
	w.is.Equal(len(w.claims(podID, 5)), 2)
	w.is.Equal(w.deadlocks(), 0)
}

// A job in a drained lane does not keep the jobs of its subject in open lanes from running, whichever of them came first.
func TestSubjectInDrainedLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t).side()
	podID := w.pod("a")
	drain := func(is bool) { w.exec(`update trapeze.lanes set drained = $1 where name = 'side'`, is) }
	drain(true)
	pending := w.put(inLane("side", "s"))[0]
	open := w.put(about("s"), about("s"))
	closed := w.put(inLane("side", "s"))[0]
	w.stands(pending, "pending")
	w.is.Equal(w.admitted(subjectS), 0)
	w.missed(1) // the pending job of the closed lane yields
	w.stands(pending, "subject")
	for _, id := range open {
		c := w.claimOne(podID)
		w.is.Equal(c.ID, id)
		w.end(podID, ending(c))
	}
	w.stands(pending, "pending") // only jobs in the closed lane are left
	w.is.True(!w.yielded(subjectS))
	drain(false)
	for _, id := range []int64{pending, closed} {
		found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "side", N: 5}}, []string{"k"}, nil, true)
		w.is.NoErr(err)
		w.is.Equal(idsOf(found.Jobs), []int64{id})
		w.end(podID, ending(found.Jobs[0]))
	}
}

func TestYieldToMoreUrgentJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t).side()
	podID := w.pod("a")
	pending := w.put(about("s"))[0]
	same := w.put(about("s"))[0]
	w.is.True(!w.yielded(subjectS)) // an equally urgent job does not overtake
	elsewhere := w.put(func(n *store.NewJob) { n.Lane, n.Subject, n.Priority = "side", "s", 30 })[0]
	w.exec(`update trapeze.lanes set enabled = false where name = 'side'`)
	w.is.True(!w.yielded(subjectS)) // the more urgent job cannot run
	w.exec(`update trapeze.lanes set enabled = true`)
	w.is.True(!w.yielded([]store.Line{{Kind: "k", Subject: "t"}, {Kind: "other", Subject: "s"}}))
	w.is.True(w.yielded(subjectS))
	w.stands(pending, "subject")
	w.is.Equal(w.admitted(subjectS), 1)
	w.stands(elsewhere, "pending")
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, same, 50, false, "ann")) // which lets the pending job yield and admits the other
	w.stands(elsewhere, "subject")
	c := w.claimOne(podID)
	w.is.Equal(c.ID, same)
	w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, elsewhere, 100, false, "ann"))
	w.is.Equal(w.at(same).State, job.Running) // a running job does not yield
	w.end(podID, ending(c))
	w.stands(elsewhere, "pending")
}

// The latest run stays the current one while other jobs take the guard and give it back.
func TestCurrentRunAfterYield(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ran := w.put(about("s"))[0]
	w.end(podID, ending(w.claimOne(podID)))
	pending := w.put(about("s"))[0]
	current := func(want int64) {
		t.Helper()
		j, err := view.Current(w.ctx(), w.Store, "k", "s", "")
		w.is.NoErr(err)
		w.is.Equal(j.ID, want)
		w.is.Equal(w.count(`select count(*) from trapeze.job where is_current`), 1)
		w.is.Equal(w.count(`select id from trapeze.job where is_current`), int(want))
	}
	current(ran)
	urgent := w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 50 })[0]
	w.missed(1)
	current(ran)
	_, err := admin.Cancel(w.ctx(), w.Store, urgent, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	current(ran)
	w.missed(1)
	current(ran)
	c := w.claimOne(podID)
	w.is.Equal(c.ID, pending)
	current(pending)
	// A pending job does not bring back a run that has been deleted.
	w.end(podID, ending(c))
	again := w.put(about("s"))[0]
	for _, id := range []int64{ran, pending} {
		_, err := admin.Delete(w.ctx(), w.Store, id, "ann")
		w.is.NoErr(err)
	}
	_, err = admin.Cancel(w.ctx(), w.Store, again, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	w.is.Equal(w.count(`select count(*) from trapeze.subjects`), 0)
}

// Within a subject, jobs run by priority, and then in the order in which they became due. A new job never overtakes a waiting one.
func TestOrderWithinSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	with := func(priority int) func(*store.NewJob) {
		return func(n *store.NewJob) { n.Subject, n.Priority, n.Starts = "s", priority, true }
	}
	w.put(with(10))
	c := w.claimOne(podID)
	first, second, low, high := w.put(with(10))[0], w.put(with(10))[0], w.put(with(5))[0], w.put(with(20))[0]
	release := w.freeze(`select from trapeze.parked where id = $1 for update`, high)
	ended, err := w.Finish(w.ctx(), podID, []store.Ending{ending(c)})
	w.is.NoErr(err)
	w.is.True(len(ended) == 1 && ended[c.ID].Heir == nil) // the first job is locked, and a later one must not overtake it
	release(true)
	late := w.new(with(20))
	places, err := w.Enqueue(w.ctx(), podID, late)
	w.is.NoErr(err)
	w.is.Equal(places[late[0].ID], store.PlacedWaiting)
	w.missed(1)
	for _, id := range []int64{high, late[0].ID, first, second, low} {
		c := w.claimOne(podID)
		w.is.Equal(c.ID, id)
		step := w.new(then(c, with(4)))[0]
		ended, ok := w.end(podID, endingWith(c, step))
		w.is.True(ok)
		w.is.Equal(ended.ChildRunning, id == low) // otherwise, a more urgent job of the subject comes first
		_, err := admin.Cancel(w.ctx(), w.Store, step.ID, 0, true, "ann", ignoreLease)
		w.is.NoErr(err)
	}
	c2 := w.put(with(10))[0]
	w.is.Equal(w.claimOne(podID).ID, c2)
}

// A job that a transaction of the host has submitted comes before one that is submitted later, although it is not promoted yet.
func TestDueJobBeforeLaterSubmission(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	due := w.new(about("s"))
	_, err := store.EnqueueIn(w.ctx(), w.Store, w.Pool(), due, false)
	w.is.NoErr(err)
	later := w.new(func(n *store.NewJob) { n.Subject, n.Starts = "s", true })
	places, err := w.Enqueue(w.ctx(), podID, later)
	w.is.NoErr(err)
	w.is.Equal(places[later[0].ID], store.PlacedWaiting)
	w.missed(0) // the due job is promoted first
	_, _, err = w.Promote(w.ctx(), 10)
	w.is.NoErr(err)
	for _, id := range []int64{due[0].ID, later[0].ID} {
		c := w.claimOne(podID)
		w.is.Equal(c.ID, id)
		w.end(podID, ending(c))
	}
}

// A next step with its parent's kind and subject goes ahead of equally urgent jobs that wait for the subject.
func TestNextStepKeepsGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"), about("s"))
	c := w.claimOne(podID)
	step := w.new(then(c))[0]
	ended, ok := w.end(podID, endingWith(c, step))
	w.is.True(ok && ended.ChildRunning)
	w.missed(0)
	w.exec(`update trapeze.lanes set requires_approval = true`)
	c = &store.Claimed{ID: step.ID, Fence: 1, Definition: store.Definition{PipelineID: step.PipelineID, Subject: "s"}}
	asks := w.new(then(c))[0]
	asks.NeedsApproval = true
	w.end(podID, endingWith(c, asks))
	w.stands(asks.ID, "approval") // and does not hold the subject
	w.is.Equal(len(w.claims(podID, 5)), 1)
}

// While a handler's transaction locks its job's row, other statements for the subject do not wait for it.
func TestAdmissionDuringOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(about("s"))[0]
	c := w.claimOne(podID)
	tx, err := store.Hold(w.ctx(), w.Store, w.pool, leaseOf(podID, c), time.Minute, true)
	w.is.NoErr(err)
	defer tx.End(context.Background())
	delayed := w.put(func(n *store.NewJob) { n.Subject, n.DelayMillis = "s", 1 })[0]
	w.exec(`update trapeze.parked set run_after = now() where id = $1`, delayed)
	ctx, cancel := context.WithTimeout(w.ctx(), 5*time.Second) // far less than the transaction stays open
	defer cancel()
	list := w.new(about("s"), about("s"))
	places, err := w.Enqueue(ctx, podID, list[:1])
	w.is.NoErr(err)
	w.is.Equal(places[list[0].ID], store.PlacedWaiting)
	host, err := w.pool.Begin(ctx)
	w.is.NoErr(err)
	defer func() { _ = host.Rollback(context.Background()) }()
	places, err = store.EnqueueIn(ctx, w.Store, host, list[1:], false)
	w.is.NoErr(err)
	w.is.Equal(places[list[1].ID], store.PlacedParked)
	pending, waiting, err := w.Promote(ctx, 10)
	w.is.NoErr(err)
	w.is.Equal(len(pending)+len(waiting), 1)
	a, err := w.AdmitNext(ctx, subjectS...)
	w.is.NoErr(err)
	w.is.Equal(len(a), 0)
	_, err = w.AdmitMissed(ctx)
	w.is.NoErr(err)
	w.is.NoErr(admin.SetPriority(ctx, w.Store, list[0].ID, 60, false, "ann"))
	w.is.NoErr(host.Commit(ctx))
	w.is.Equal(w.at(id).State, job.Running)
}

// While the transaction of a submission is open, the jobs of its subject run, because it holds no guard.
func TestSubjectDuringOpenSubmission(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	host, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = host.Rollback(context.Background()) }()
	early := w.new(about("s"))
	w.is.NoErr(second(store.EnqueueIn(w.ctx(), w.Store, host, early, false)))
	id := w.put(about("s"))[0]
	c := w.claimOne(podID)
	w.is.Equal(c.ID, id)
	w.end(podID, ending(c))
	w.is.NoErr(host.Commit(w.ctx()))
	w.missed(0)
	w.promote(1)
	w.is.Equal(w.claimOne(podID).ID, early[0].ID)
}

// Each call examines one page of subjects, and the next call of any pod continues after it.
func TestMissedAdmissionPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	changes := make([]func(*store.NewJob), store.MissedPage+10)
	for i := range changes {
		changes[i] = about(fmt.Sprintf("s%05d", i))
	}
	w.waits(changes...)
	w.missed(store.MissedPage)
	w.is.Equal(w.count(`select count(*) from trapeze.parked where subject < $1`, fmt.Sprintf("s%05d", store.MissedPage)), 0)
	before := w.waits(about("s00000"))[0] // its subject precedes the position
	release := w.freeze(`select from trapeze.admission for update`)
	w.missed(0) // another pod is reading a page
	release(true)
	w.missed(10)
	w.stands(before, "subject")
	_, err := admin.Cancel(w.ctx(), w.Store, before, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	w.waits(about("a"))
	w.missed(1) // the search has started again
	w.exec(`truncate trapeze.live, trapeze.subjects, trapeze.jobs, trapeze.job_events, trapeze.done`)
}

// Jobs that wait for their subject age, and are counted as waiting, like pending ones.
func TestWaitingJobsAgeAndCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"))
	c := w.claimOne(podID)
	ids := w.put(about("s"), about("s"), plain)
	w.exec(`update trapeze.parked set run_after = now() - interval '2 hours' where id = $1`, ids[0])
	backlogs, err := view.Backlogs(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(backlogs[0].Waiting, 3)
	w.is.True(backlogs[0].OldestSeconds >= 7200)
	for _, list := range []func() ([]job.LaneUse, error){
		func() ([]job.LaneUse, error) { return view.Lanes(w.ctx(), w.Store) },
		func() ([]job.LaneUse, error) { return view.LanesUpTo(w.ctx(), w.Store, 100) },
	} {
		lanes, err := list()
		w.is.NoErr(err)
		w.is.Equal(lanes[0].Waiting, 3)
		w.is.True(time.Since(*lanes[0].Oldest) > 119*time.Minute)
	}
	kinds, _, err := view.Kinds(w.ctx(), w.Store, time.Hour)
	w.is.NoErr(err)
	w.is.Equal([]int{kinds[0].Running, kinds[0].Waiting}, []int{1, 3})
	blockers, err := view.Blockers(w.ctx(), w.Store, ids[0], nil)
	w.is.NoErr(err)
	w.is.Equal(blockers[0].Why, job.BlockerSubject)
	w.is.Equal(*blockers[0].JobID, c.ID)

	w.exec(`update trapeze.parked set run_after = now() - interval '25 hours' where id = $1`, ids[0])
	ended, passed := w.overdue(10)
	w.is.Equal([][]int64{ended, passed}, [][]int64{{ids[0]}, nil})
	j := w.at(ids[0])
	w.is.Equal([]any{j.State, *j.Reason}, []any{job.Failed, job.ReasonDeadline})
	w.is.Equal(w.at(c.ID).State, job.Running)
	w.end(podID, ending(c))
	w.due(25, ids[1]) // which is pending now
	ended, _ = w.overdue(10)
	w.is.Equal(ended, ids[1:2])
	w.is.Equal(w.claimOne(podID).ID, ids[2])
	w.is.Equal(w.at(w.put(about("s"))[0]).State, job.Pending)
	w.stands(ids[2], "running")
}

// Admissions, submissions and ends of one subject at the same time lose no job.
func TestConcurrentAdmissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	const jobs = 40
	submits := async(func() (int, error) {
		for i := range jobs {
			ids, err := w.NewIDs(context.Background(), 1)
			if err != nil {
				return i, err
			}
			places, err := w.Enqueue(context.Background(), uuid.NewString(), []store.NewJob{{ID: ids[0], Kind: "k", Lane: "default", Subject: "s", Args: []byte(`1`)}})
			if err != nil {
				return i, err
			}
			if places[ids[0]] == store.PlacedWaiting {
				if err := admitAll(w.Store); err != nil {
					return i, err
				}
			}
		}
		return jobs, nil
	})
	for done := 0; done < jobs; {
		w.is.NoErr(w.ctx().Err())
		for _, c := range w.claims(podID, 5) {
			done++
			for written := 0; written == 0; { // a finish skips a row that a claim has locked
				ended, err := w.Finish(w.ctx(), podID, []store.Ending{ending(c)})
				w.is.NoErr(err)
				written = len(ended)
			}
			w.is.NoErr(admitAll(w.Store))
		}
	}
	_, err := submits()
	w.is.NoErr(err)
	w.is.Equal(w.count(`select count(*) from trapeze.done`), jobs)
}

// admitAll admits the next job of subject s, as an engine does.
func admitAll(s *store.Store) error {
	for again := subjectS; len(again) > 0; {
		a, err := s.Admit(context.Background(), again)
		if err != nil {
			return err
		}
		again = a.Again
	}
	return nil
}
