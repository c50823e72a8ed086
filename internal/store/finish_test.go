package store_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func TestHandOffSingleCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(about("s"))[0]
	parent := w.claimOne(podID)
	e := endingWith(parent, w.new(then(parent, about("next")))[0])
	e.Result = json.RawMessage(`{"kg": 12.50}`)
	end, ok := w.end(podID, e)
	w.is.True(ok && end.ChildRunning)
	w.is.Equal(end.State, job.Succeeded)
	w.is.Equal(string(w.at(id).Result), `{"kg": 12.50}`) // the result is stored byte for byte
	child := w.at(e.Next.ID)
	w.is.Equal([]any{child.State, *child.Pod, child.Fence, child.Attempt, *child.ParentID, child.PipelineID},
		[]any{job.Running, podID, int64(1), 1, id, id})
	_, ok = w.end(podID, e)
	w.is.True(!ok) // a second finish of the same claim is rejected and writes nothing
}

func TestSubjectMutexHandOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"))
	run := w.claimOne(podID)
	for range 3 {
		child := w.new(then(run))[0]
		end, ok := w.end(podID, endingWith(run, child))
		w.is.True(ok && end.ChildRunning) // the parent's own run does not block the next step
		run = &store.Claimed{ID: child.ID, Fence: 1, Definition: store.Definition{PipelineID: child.PipelineID, Subject: child.Subject, Step: child.Step}}
		w.put(about("s"))
		w.is.Equal(len(w.claims(podID, 5)), 0) // no other job of the subject runs in between
	}
	w.is.Equal(w.count(`select count(*) from trapeze.subjects`), 1)
	w.end(podID, ending(run))
	w.is.Equal(len(w.claims(podID, 5)), 1) // now the next job of the subject can run
}

func TestNextStepBehindOtherJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(plain, about("busy"))
	claims := w.claims(podID, 2)
	parent := claims[0]
	w.is.Equal(parent.ID, ids[0])
	busy := w.new(then(parent, about("busy")))[0]
	end, ok := w.end(podID, endingWith(parent, busy))
	w.is.True(ok && !end.ChildRunning) // another job of the next step's subject is running
	w.is.Equal(w.at(busy.ID).State, job.Pending)
	w.end(podID, ending(claims[1]))

	parent = w.claimOne(podID)
	w.is.Equal(parent.ID, busy.ID)
	w.put(plain)
	equal := w.new(then(parent, about("x")))[0]
	end, _ = w.end(podID, endingWith(parent, equal))
	w.is.True(end.ChildRunning) // a next step goes before waiting jobs of the same priority
	parent = &store.Claimed{ID: equal.ID, Fence: 1, Definition: store.Definition{PipelineID: equal.PipelineID}}
	w.put(func(n *store.NewJob) { n.Priority = 11 })
	later := w.new(then(parent))[0]
	end, _ = w.end(podID, endingWith(parent, later))
	w.is.True(!end.ChildRunning) // a next step does not go before more urgent jobs
}

func TestPoisonedBatchMember(t *testing.T) {
	t.Parallel()
	for name, poison := range map[string]func(w *world, e *store.Ending){
		"conflict on the child's id": func(w *world, e *store.Ending) {
			next := w.new(then(&store.Claimed{ID: e.ID}))[0]
			next.ID = e.ID
			e.Next = &next
		},
		"NUL in the error text":     func(_ *world, e *store.Ending) { e.Error = "bad\x00byte" },
		"a result that is not JSON": func(_ *world, e *store.Ending) { e.Result = json.RawMessage(`{"cut`) },
		"args that are not JSON": func(w *world, e *store.Ending) {
			n := w.new(then(&store.Claimed{ID: e.ID}))[0]
			n.Args = nil
			e.Next = &n
		},
		"a priority out of range": func(w *world, e *store.Ending) {
			n := w.new(then(&store.Claimed{ID: e.ID}))[0]
			n.Priority = 101
			e.Next = &n
		},
		"text that is not UTF-8": func(_ *world, e *store.Ending) { e.Error = "\xff" },
		"a child without a kind": func(w *world, e *store.Ending) {
			n := w.new(then(&store.Claimed{ID: e.ID}))[0]
			n.Kind = ""
			e.Next = &n
		},
		"a subject that is too long": func(w *world, e *store.Ending) {
			n := w.new(then(&store.Claimed{ID: e.ID}))[0]
			n.Subject = big(501)
			e.Next = &n
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			w.put(plain, about("s"), about("t"))
			claims := w.claims(podID, 3)
			batch := []store.Ending{ending(claims[0]), ending(claims[1]), endingWith(claims[2], w.new(then(claims[2]))[0])}
			poison(w, &batch[1])
			before := w.count(`select count(*) from trapeze.job_event`)
			_, err := w.Finish(w.ctx(), podID, batch)
			w.is.True(err != nil)
			w.is.True(store.Refused(err)) // the error shows that the data was rejected
			w.is.True(!store.Unknown(err))
			w.is.Equal(w.count(`select count(*) from trapeze.job_event`), before) // nothing was written
			for i, e := range batch {
				_, err := w.Finish(w.ctx(), podID, []store.Ending{e})
				w.is.Equal(store.Refused(err), i == 1) // the other members can be finished one by one
			}
			w.is.Equal(w.count(`select count(*) from trapeze.done`), 2)
			w.is.Equal(w.at(claims[1].ID).State, job.Running)
		})
	}
}

func big(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'x'
	}
	return string(b)
}

func TestFinishMissingPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	c := w.claimOne(podID)
	var day string
	w.is.NoErr(w.pool.QueryRow(w.ctx(), `select to_char(now() at time zone 'UTC', 'YYYYMMDD')`).Scan(&day))
	w.exec(`alter table trapeze.done_succeeded detach partition trapeze.done_succeeded_` + day)
	w.exec(`alter table trapeze.done_succeeded detach partition trapeze.done_succeeded_default`)
	_, err := w.Finish(w.ctx(), podID, []store.Ending{ending(c)})
	w.is.True(!store.Refused(err))  // the data is not at fault
	w.is.True(store.Transient(err)) // the finish can be resent later
	w.exec(`alter table trapeze.done_succeeded attach partition trapeze.done_succeeded_` + day +
		` for values from ('` + day + ` 00:00:00+00') to ('` + time.Now().UTC().AddDate(0, 0, 1).Format("20060102") + ` 00:00:00+00')`)
	_, ok := w.end(podID, ending(c))
	w.is.True(ok)
}

func TestFinishInCallersTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	id := w.put(about("s"))[0]
	c := w.claimOne(podID)
	w.exec(`create table mine (n int)`)
	run := func(commit bool) error {
		tx, err := store.Hold(w.ctx(), w.Store, w.pool, leaseOf(podID, c), time.Minute, true)
		if err != nil {
			return err
		}
		defer tx.End(w.ctx())
		_, err = tx.Exec(w.ctx(), `insert into mine values (1)`)
		w.is.NoErr(err)
		e := endingWith(c, w.new(then(c))[0])
		if !commit {
			_, err = w.FinishIn(w.ctx(), tx, podID, e)
			return err
		}
		_, err = tx.Finish(w.ctx(), w.Store, podID, e)
		return err
	}
	w.is.NoErr(run(false))
	w.is.Equal(w.at(id).State, job.Running)
	w.is.NoErr(run(true))
	w.is.Equal(w.at(id).State, job.Succeeded)
	w.is.Equal(w.count(`select count(*) from mine`), 1)
	w.is.True(errors.Is(run(true), job.ErrLeaseLost))
}

func TestClaimOutcomeReadBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain, plain, plain, plain, plain)
	c := w.claims(a, 5)
	child := w.new(then(c[0]))[0]
	w.end(a, endingWith(c[0], child))
	_, err := w.Park(w.ctx(), leaseOf(a, c[1]), time.Hour, store.Retry{Message: "boom"})
	w.is.NoErr(err)
	_, err = w.HandBack(w.ctx(), a, []job.Lease{leaseOf(a, c[2])}, "why")
	w.is.NoErr(err)
	w.exec(`update trapeze.live set priority = 99 where id = $1`, c[3].ID)
	_, err = w.HandBack(w.ctx(), a, []job.Lease{leaseOf(a, c[3])}, "why")
	w.is.NoErr(err)
	w.is.Equal(w.claimOne(b).ID, c[3].ID)
	leases := make([]job.Lease, len(c))
	for i := range c {
		leases[i] = leaseOf(a, c[i])
	}
	found, err := w.ClaimOutcomes(w.ctx(), a, leases, []int64{child.ID, 0, 0, 0, 0}, false)
	w.is.NoErr(err)
	at := func(i int) store.ClaimOutcome { return found[c[i].ID] }
	w.is.Equal(*at(0).State, job.Succeeded)
	w.is.True(at(0).NextRunning)
	w.is.True(at(1).Parked)
	w.is.True(at(2).Pending)
	w.is.Equal(at(3), store.ClaimOutcome{ID: c[3].ID, Fence: 1}) // another pod has claimed the job in the meantime
	w.is.True(at(4).Held)
}

// A job with fence 1 that this pod holds may have been inserted as pending and claimed afterwards. The code that inserted such a job must
// not start it, because the claim starts it.
func TestClaimedJobVersusBornRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	list := w.new(plain)
	list[0].Starts = true
	placed, err := w.Enqueue(w.ctx(), podID, list)
	w.is.NoErr(err)
	w.is.Equal(placed[list[0].ID], store.PlacedPending) // the job waits behind the first one
	w.claims(podID, 2)
	born := w.new(plain)
	born[0].Starts = true
	_, err = w.Enqueue(w.ctx(), podID, born)
	w.is.NoErr(err)
	found, err := w.ClaimOutcomes(w.ctx(), podID, []job.Lease{{JobID: list[0].ID, Fence: 1, Pod: podID}, {JobID: born[0].ID, Fence: 1, Pod: podID}},
		[]int64{list[0].ID, born[0].ID}, false)
	w.is.NoErr(err)
	w.is.True(found[list[0].ID].Held)
	w.is.True(!found[list[0].ID].NextRunning) // the job was started by a claim
	w.is.True(found[born[0].ID].NextRunning)  // the job was started on insert, and no claim returned it
}

func TestLostReplyToClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about("s"), plain, plain)
	c := w.claims(podID, 3)
	held, err := w.Held(w.ctx(), podID)
	w.is.NoErr(err)
	w.is.Equal(len(held), 3) // claims are listed whether or not the process knows about them
	back, err := w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, c[0]), leaseOf(podID, c[2])}, "its reply was lost")
	w.is.NoErr(err)
	w.is.Equal(back, map[int64]bool{c[0].ID: true, c[2].ID: true})
	w.is.Equal(len(w.claims(podID, 3)), 2) // no attempt was spent, and the subject of the returned job is free again
}

func TestEnqueueSentTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	list := w.new(plain, about("s"))
	list[1].Starts = true
	placed, err := w.Enqueue(w.ctx(), podID, list)
	w.is.NoErr(err)
	w.is.Equal(placed, map[int64]store.Place{list[0].ID: store.PlacedPending, list[1].ID: store.PlacedRunning})
	_, err = w.Enqueue(w.ctx(), podID, list)
	w.is.True(store.Refused(err)) // the second insert violates the primary key
	w.is.True(w.IDTaken(err))
	other := list[1]
	other.Kind = "other"
	found, err := w.Submitted(w.ctx(), podID, []*store.NewJob{&list[0], &other, {ID: -1}})
	w.is.NoErr(err)
	w.is.Equal(found, map[int64]store.Place{list[0].ID: store.PlacedPending}) // a matching id alone is not sufficient
	many := w.new(plain, about("s"), func(n *store.NewJob) { n.DelayMillis = 60_000 }, func(n *store.NewJob) { n.NeedsApproval = true })
	many[0].Starts = true
	placed, err = w.Enqueue(w.ctx(), podID, many)
	w.is.NoErr(err)
	found, err = w.Submitted(w.ctx(), podID, []*store.NewJob{&many[0], &many[1], &many[2], &many[3]})
	w.is.NoErr(err)
	w.is.Equal(found, placed)
	w.is.Equal(placed[many[1].ID], store.PlacedWaiting) // the first job of the subject is running
}

func TestEnqueueInCallersTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	list := w.new(func(n *store.NewJob) { n.Starts = true })
	w.is.NoErr(pgx.BeginFunc(w.ctx(), w.pool, func(tx pgx.Tx) error { return second(store.EnqueueIn(w.ctx(), w.Store, tx, list, false)) }))
	w.is.Equal(w.at(list[0].ID).State, job.Pending)
}
