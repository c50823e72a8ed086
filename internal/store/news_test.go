package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// names formats events as job/number.
func names(list []view.News) (names []string) {
	for _, n := range list {
		names = append(names, fmt.Sprintf("%d/%d", *n.Job, *n.EventNo))
	}
	return names
}

func TestStreamDuringOpenTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	now, err := view.ReadFeedNow(w.ctx(), w.Store)
	w.is.NoErr(err)
	held := w.put(plain)[0]
	other := w.put(plain)[0]
	jobs := []int64{held, other}
	list, seen, err := view.ReadNews(w.ctx(), w.Store, now.Seen, jobs, nil)
	w.is.NoErr(err)
	w.is.Equal(names(list), []string{fmt.Sprintf("%d/1", held), fmt.Sprintf("%d/1", other)})

	// A transaction that has written an event stays open while other transactions begin and commit.
	release := w.freeze(`with u as (update trapeze.live set event_no = event_no + 1 where id = $1 returning id, event_no)
		insert into trapeze.job_events (job, event_no, from_state, to_state, event) select id, event_no, 'pending', 'pending', 'late' from u`, held)
	claimed := w.claimOne(podID)
	w.is.Equal(claimed.ID, other)
	w.end(podID, ending(claimed))
	list, seen, err = view.ReadNews(w.ctx(), w.Store, seen, jobs, nil)
	w.is.NoErr(err)
	w.is.Equal(names(list), []string{fmt.Sprintf("%d/2", other), fmt.Sprintf("%d/3", other)}) // the events of the other transactions appear immediately
	w.is.Equal(len(seen.Open) > 0, true)                                                      // the position records open transactions
	list, seen, err = view.ReadNews(w.ctx(), w.Store, seen, jobs, nil)
	w.is.NoErr(err)
	w.is.Equal(len(list), 0) // no event appears twice
	release(true)
	list, seen, err = view.ReadNews(w.ctx(), w.Store, seen, jobs, nil)
	w.is.NoErr(err)
	w.is.Equal(names(list), []string{fmt.Sprintf("%d/2", held)}) // the event appears late, but is not skipped
	list, _, err = view.ReadNews(w.ctx(), w.Store, seen, nil, []int64{held})
	w.is.NoErr(err)
	w.is.Equal(len(list), 0)
}

// A reader that polls, or that resumes from the end of any page, receives each of a job's events exactly once and in order, despite
// concurrent transactions.
func TestPipelineStreamResumption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	root := w.put(plain)[0]
	c := w.claimOne(podID)
	for range 5 { // five steps in sequence
		next := w.new(then(c, func(n *store.NewJob) { n.Starts = false }))[0]
		w.end(podID, endingWith(c, next))
		c = w.claimOne(podID)
	}
	w.end(podID, ending(c))
	all, end, err := view.PipelineNews(w.ctx(), w.Store, root, view.Seen{}, nil, view.Position{}, 1000)
	w.is.NoErr(err)
	w.is.Equal(all[len(all)-1].Status, job.PipelineSucceeded) // the last event ended the pipeline
	w.is.Equal(all[0].Status, job.Status(""))                 // the first event did not end the pipeline
	for cut := range all {
		first, within, err := view.PipelineNews(w.ctx(), w.Store, root, view.Seen{}, nil, view.Position{}, cut+1)
		w.is.NoErr(err)
		rest, _, err := view.PipelineNews(w.ctx(), w.Store, root, view.Seen{}, &within, first[cut].Position(), 1000)
		w.is.NoErr(err)
		w.is.Equal(names(append(first, rest...)), names(all))
	}
	none, _, err := view.PipelineNews(w.ctx(), w.Store, root, end, nil, view.Position{}, 1000)
	w.is.NoErr(err)
	w.is.Equal(len(none), 0)
}

func TestFeedForSingleSubmitter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("a")
	ann := w.put(func(n *store.NewJob) { n.Submitter = "ann" })[0]
	bob := w.put(func(n *store.NewJob) { n.Submitter = "bob" })[0]
	var all []view.News
	pgtest.Wait(t, "the horizon passes both submissions", func() bool {
		var err error
		all, err = view.FeedPage(w.ctx(), w.Store, view.Position{}, "", 10)
		w.is.NoErr(err)
		if len(all) == 0 {
			return false
		}
		last := all[len(all)-1]
		return last.Job != nil && *last.Job == bob
	})
	w.is.True(all[0].Job == nil) // the event for the pod that joined
	list, err := view.FeedPage(w.ctx(), w.Store, view.Position{}, "ann", 10)
	w.is.NoErr(err)
	w.is.Equal(len(list), 1)
	w.is.Equal(*list[0].Job, ann)
	w.is.Equal(list[0].Submitter, "ann")
	now, err := view.ReadFeedNow(w.ctx(), w.Store)
	w.is.NoErr(err)
	w.is.Equal(len(now.Epoch), 8)
	w.is.Equal(now.Last, all[len(all)-1].Position())
	w.is.True(now.Oldest <= all[0].Xid && now.Oldest > 0 && now.Next > now.Last.Xid)
}

func TestTransactionSets(t *testing.T) {
	is := is.New(t)
	for _, text := range []string{"0", "12", "12_3_7"} {
		s, err := view.ParseSeen(text)
		is.NoErr(err)
		is.Equal(s.String(), text)
	}
	for _, text := range []string{"", "x", "3_12", "-1", "12_", "12_3.7"} {
		_, err := view.ParseSeen(text)
		is.True(err != nil) // the text is not a valid set of transactions
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		set := func() (s view.Seen) {
			s.Upto = r.Uint64N(12)
			for x := range s.Upto {
				if r.IntN(3) == 0 {
					s.Open = append(s.Open, x)
				}
			}
			return s
		}
		a, b := set(), set()
		both := a.With(b)
		for x := range uint64(14) {
			if both.Has(x) != (a.Has(x) || b.Has(x)) {
				t.Fatalf("seed %d: %v with %v is %v: wrong for %d", seed, a, b, both, x)
			}
		}
		is.True(!slices.Contains(both.Open, both.Upto+1))
	}
}
