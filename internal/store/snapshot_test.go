package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func TestClaimSnapshotRowTouched(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]string{"without a subject": "", "with a subject": "s"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			id := w.put(about(subject))[0]
			release := w.freeze(`select pg_advisory_xact_lock(7)`)
			claim := async(func() (store.Claims, error) {
				return store.RunClaim(context.Background(), w.Store, gated(store.ClaimSQL, store.LanesWanted, "lane, want, ahead, first, last"), fiveOf(podID))
			})
			w.waiting(1) // the statement has taken its snapshot but has not read a row yet
			w.is.NoErr(w.StaleResult(w.ctx(), job.Lease{JobID: id, Fence: -1, Pod: podID}, "a former owner's"))
			release(false)
			found, err := claim()
			w.is.NoErr(err)
			w.is.Equal(idsOf(found.Jobs), []int64{id}) // the newer version of the row is checked and claimed
			w.is.Equal(w.at(id).EventNo, 3)            // the concurrent update is not lost
		})
	}
}

func TestClaimSnapshotJobTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	ids := w.put(about("s"), about("t"), plain)
	release := w.freeze(`select pg_advisory_xact_lock(7)`)
	claim := async(func() (store.Claims, error) {
		return store.RunClaim(context.Background(), w.Store, gated(store.ClaimSQL, store.LanesWanted, "lane, want, ahead, first, last"), fiveOf(a))
	})
	w.waiting(1)
	taken := w.claimOne(b)
	w.is.Equal(taken.ID, ids[0])
	w.end(b, ending(taken))
	next := w.claimOne(b) // this job has not ended
	w.is.Equal(next.ID, ids[1])
	again := w.put(about("t"))
	release(false)
	found, err := claim()
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), ids[2:])
	w.is.Equal(w.at(again[0]).State, job.Pending)
}

func TestFinishSnapshotRowTouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	w.put(plain)
	c := w.claimOne(a)
	release := w.freeze(`select pg_advisory_xact_lock(7)`)
	finish := async(func() (int64, error) {
		var none []string
		return store.Do(context.Background(), w.Store, w.pool, gated(store.EndSQL, store.EndRows, store.EndColumns), store.By(
			"id", []int64{c.ID}, "fence", []int64{c.Fence}, "state", []string{"succeeded"}, "outcome", []string{"ok"}, "reason", []string{"ok"},
			"result", none, "error", none, "error_class", none, "error_code", none, "undo", none, "started", []time.Time(nil), "pod", a))
	})
	w.waiting(1)
	w.exec(`update trapeze.live set priority = priority where id = $1`, c.ID)
	release(false)
	ended, err := finish()
	w.is.NoErr(err)
	w.is.Equal(ended, int64(0))
	w.is.Equal(w.at(c.ID).State, job.Running) // nothing was written
	_, ok := w.end(a, ending(c))              // the flusher resends the finish
	w.is.True(ok)
	w.is.Equal(w.at(c.ID).State, job.Succeeded)
}

func TestFinishSnapshotSubjectTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	w.put(plain)
	c := w.claimOne(a)
	child := w.new(then(c, about("s")))[0]
	release := w.freeze(`insert into trapeze.subjects values ('k', 's', -1, 'held')`)
	finish := async(func() (map[int64]store.Ended, error) {
		return w.Finish(context.Background(), a, []store.Ending{endingWith(c, child)})
	})
	w.waiting(1)
	release(true)
	ended, err := finish()
	w.is.NoErr(err)
	w.is.Equal(ended[c.ID], store.Ended{State: job.Succeeded})
	w.is.Equal(w.at(child.ID).State, job.Pending)
	w.exec(`delete from trapeze.subjects where job_id = -1`)
}

// fiveOf returns the arguments for claiming five jobs.
func fiveOf(podID string) store.Args {
	return store.By("pod", podID, "lanes", []string{"default"}, "wants", []int32{5}, "aheads", []int32{0}, "kinds", []string{"k"},
		"short", []string(nil), "isolated", true, "stream", 0, "firsts", []int32{1}, "lasts", []int32{1}, "from_ranks", []int32{-100},
		"from_times", []time.Time{{}}, "to_ranks", []int32{100})
}

// gated returns a copy of the statement whose first row source waits for advisory lock 7, after the statement has taken its snapshot.
func gated(st *store.Statement, source, names string) *store.Statement {
	source = store.Argument.ReplaceAllStringFunc(source, func(name string) string { return fmt.Sprintf("$%d", st.At(name[1:])) })
	set, alias, _ := strings.Cut(source, " as ")
	name, _, _ := strings.Cut(alias, "(")
	gate := fmt.Sprintf("(select %s, pg_advisory_xact_lock_shared(7) as gate from %s as u(%s)) as %s", names, set, names, name)
	if !strings.Contains(st.Text(), source) {
		panic("no such source in the statement: " + source)
	}
	return st.With(strings.Replace(st.Text(), source, gate, 1))
}
