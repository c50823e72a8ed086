package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// A subject's newest run is found both by subject and in the list of current runs: while it is in progress, after it has ended, after the
// next claim, and after earlier runs have been deleted. If the newest run itself is deleted, the newest remaining finished run takes its
// place.
func TestCurrentRunOfSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	current := func(want int64) {
		t.Helper()
		is := is.New(t)
		found, err := view.Current(w.ctx(), w.Store, "k", "s", "")
		if want == 0 {
			is.True(errors.Is(err, job.ErrNotFound))
			return
		}
		is.NoErr(err)
		is.Equal(found.ID, want)
		page, err := view.Jobs(w.ctx(), w.Store, job.Filter{Kind: "k", Subject: "s", Current: true})
		is.NoErr(err)
		is.Equal(len(page.Jobs), 1)
		is.Equal(page.Jobs[0].ID, want)
	}
	list := w.put(about("s"))
	current(0) // the subject has never run
	claimed := w.claimOne(podID)
	current(list[0])
	w.end(podID, ending(claimed))
	current(list[0])
	list = append(list, w.put(about("s"))...)
	current(list[0]) // a waiting job is not a run
	claimed = w.claimOne(podID)
	current(list[1])
	failed := ending(claimed)
	failed.State, failed.Outcome, failed.Reason = job.Failed, job.Error, job.ReasonError
	w.end(podID, failed)
	list = append(list, w.put(about("s"), about("other"), plain)...)
	for _, c := range w.claims(podID, 3) {
		w.end(podID, ending(c))
	}
	current(list[2])

	page, err := view.Jobs(w.ctx(), w.Store, job.Filter{Current: true})
	w.is.NoErr(err)
	w.is.Equal(len(page.Jobs), 2) // one job for each subject, newest first
	w.is.Equal([]int64{page.Jobs[0].ID, page.Jobs[1].ID}, []int64{list[3], list[2]})
	first, err := view.Jobs(w.ctx(), w.Store, job.Filter{Current: true, Limit: 1})
	w.is.NoErr(err)
	w.is.Equal(first.Jobs[0].ID, list[3])
	second, err := view.Jobs(w.ctx(), w.Store, job.Filter{Current: true, Limit: 1, Cursor: first.Cursor})
	w.is.NoErr(err)
	w.is.Equal(second.Jobs[0].ID, list[2])
	page, err = view.Jobs(w.ctx(), w.Store, job.Filter{Current: true, States: []job.State{job.Failed}})
	w.is.NoErr(err)
	w.is.Equal(len(page.Jobs), 0) // the failed run is not the current one

	w.age(list[0])
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	current(list[2])
	w.age(list[2])
	_, err = upkeep.Forget(w.ctx(), w.Store, "succeeded", 30*time.Hour, unpaced)
	w.is.NoErr(err)
	current(list[1]) // the failed run is kept longer and becomes current
	_, err = admin.Delete(w.ctx(), w.Store, list[1], "ann")
	w.is.NoErr(err)
	current(0)
}

// However busy a subject is, it has at most one held row in subjects. Additional rows are left behind only by admissions that raced, and
// the next one deletes them. The current run is always a job that has run.
func TestHotSubjectHistoryRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const runs, pods = 60, 3
	for range runs {
		w.put(about("s"))
	}
	podIDs := make([]string, pods)
	for i := range podIDs {
		podIDs[i] = w.pod("p" + string(rune('a'+i)))
	}
	var all sync.WaitGroup
	done := make(chan struct{})
	var ended, most, running int
	var mu sync.Mutex
	for _, podID := range podIDs {
		all.Go(func() {
			for {
				mu.Lock()
				over := ended == runs
				mu.Unlock()
				if over || w.ctx().Err() != nil {
					return
				}
				found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 5}}, []string{"k"}, nil, true)
				if err != nil {
					t.Error(err)
					return
				}
				for _, c := range found.Jobs {
					for written := map[int64]store.Ended{}; len(written) == 0; { // a finish skips a row that another claim has locked
						if written, err = w.Finish(w.ctx(), podID, []store.Ending{ending(c)}); err != nil {
							t.Error(err)
							return
						}
					}
					for again := []store.Line{{Kind: "k", Subject: "s"}}; len(again) > 0; {
						admitted, err := w.Admit(w.ctx(), again)
						if err != nil {
							t.Error(err)
							return
						}
						again = admitted.Again
					}
					mu.Lock()
					ended++
					mu.Unlock()
				}
			}
		})
	}
	go func() { all.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		counts, err := store.Rows(w.ctx(), w.Store, pgx.RowToStructByPos[struct{ Running, Rest int }],
			`select count(*) filter (where state = 'held'), count(*) filter (where state <> 'held') from trapeze.subjects`)
		w.is.NoErr(err)
		running, most = max(running, counts[0].Running), max(most, counts[0].Rest)
	}
	w.is.Equal(ended, runs)
	w.is.True(running <= 1)
	w.is.True(most <= pods) // the usual row, plus one for each admission that began before the run it supersedes
	w.put(about("s"))
	found, err := w.Claim(w.ctx(), podIDs[0], []store.Want{{Lane: "default", N: 1}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 1)
	_, err = w.Finish(w.ctx(), podIDs[0], []store.Ending{ending(found.Jobs[0])})
	w.is.NoErr(err)
	last, err := view.Current(w.ctx(), w.Store, "k", "s", "")
	w.is.NoErr(err)
	w.is.Equal(last.State, job.Succeeded)
	w.is.Equal(w.count(`select count(*) from trapeze.subjects`), 1)
}

// An admission that began before its subject's latest run cannot see that run's row, and therefore does not delete it. The subject's next
// admission deletes all such rows. Until then, the current run is the running job or one of the most recently finished ones.
func TestAdmissionStartedBeforeLastRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	list := w.waits(about("a"), about("s"), about("s"))
	rests := func() int {
		return w.count(`select count(*) from trapeze.subjects where subject = 's' and state = 'free'`)
	}
	current := func() []int64 {
		t.Helper()
		page, err := view.Jobs(w.ctx(), w.Store, job.Filter{Kind: "k", Subject: "s", Current: true, Limit: 10})
		w.is.NoErr(err)
		found, err := view.Current(w.ctx(), w.Store, "k", "s", "")
		w.is.NoErr(err)
		w.is.Equal(found.ID, page.Jobs[0].ID)
		ids := make([]int64, len(page.Jobs))
		for i, j := range page.Jobs {
			ids[i] = j.ID
		}
		return ids
	}
	finish := func(claims []*store.Claimed) {
		t.Helper()
		for _, c := range claims {
			ended, err := w.Finish(w.ctx(), podID, []store.Ending{ending(c)})
			w.is.NoErr(err)
			w.is.Equal(len(ended), 1)
		}
	}
	a, s := store.Line{Kind: "k", Subject: "a"}, store.Line{Kind: "k", Subject: "s"}
	// The early admission has locked the first two jobs, and is waiting for a transaction that has reserved subject a. A more urgent job runs.
	release := w.freeze(`insert into trapeze.subjects values ('k', 'a', -1, 'held')`)
	early := async(func() (store.Admitted, error) { return w.Admit(context.Background(), []store.Line{s, a}) })
	w.waiting(1)
	urgent := w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 20 })
	claimed := w.claims(podID, 5)
	w.is.Equal(idsOf(claimed), urgent)
	finish(claimed)
	release(false)
	found, err := early()
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 2)
	w.is.Equal(rests(), 1)
	w.is.Equal(current(), urgent) // an admitted job is not a run before it starts
	claimed = w.claims(podID, 5)
	w.is.Equal(idsOf(claimed), list[:2])
	w.is.Equal(current(), list[1:2]) // the running job is current, not the one before it
	finish(claimed)
	w.is.Equal(rests(), 0) // the end that gives the guard away deletes the row that the racing admission left behind
	w.is.Equal(current(), list[1:2])
	w.missed(0)
	finish(w.claims(podID, 5))
	w.is.Equal(rests(), 1)
	w.is.Equal(current(), list[2:])
}
