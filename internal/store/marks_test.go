package store_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// urgent returns a change that sets a job's priority.
func urgent(priority int) func(*store.NewJob) { return func(n *store.NewJob) { n.Priority = priority } }

// ready backdates the ready time of a pending job by the given duration, and returns it.
func (w *world) ready(id int64, ago time.Duration) time.Time {
	w.t.Helper()
	var at time.Time
	w.is.NoErr(w.Pool().QueryRow(w.ctx(), `update trapeze.live set ready_at = now() - $2::bigint * interval '1 microsecond' where id = $1
		returning ready_at`, id, ago.Microseconds()).Scan(&at))
	return at
}

func TestClaimFromMarkOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(urgent(10), urgent(-100), urgent(100), urgent(10), about("s"), about("s"), urgent(50))
	mark := w.ready(ids[3], time.Hour)
	claim := func(n int) []int64 {
		found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: n, Marks: []store.Mark{{Rank: -10, Since: mark}}}, {Lane: "other", N: n}}, []string{"k"}, nil, true)
		w.is.NoErr(err)
		got := make([]int64, 0, n)
		for _, c := range found.Jobs {
			got = append(got, c.ID)
		}
		return got
	}
	w.is.Equal(claim(3), []int64{ids[2], ids[6], ids[3]}) // by priority, then by age, and no more than wanted
	w.is.Equal(claim(9), []int64{ids[0], ids[4], ids[1]}) // only one job of the subject is claimed
	w.is.Equal(claim(9), []int64{})
}

func TestClaimSkipsJobsBeforeMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(urgent(10), urgent(9), urgent(11), urgent(10))
	for _, id := range ids[:3] {
		w.ready(id, time.Hour)
	}
	marks := []store.Mark{{Rank: -10, Since: time.Now().Add(-time.Minute)}}
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 9, Marks: marks}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{ids[2], ids[3], ids[1]}) // other ranks are read from their beginning
	w.is.Equal(idsOf(w.claims(podID, 9)), ids[:1])                 // a claim without a mark finds the older job
}

func TestMarkClaimableJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	margin := time.Duration(0)
	mark := func(since time.Time) time.Time {
		found, took, err := w.Marks(w.ctx(), map[string][]store.Mark{"default": {{Rank: -10, Since: since}}, "other": nil}, []string{"k"}, margin)
		w.is.NoErr(err)
		w.is.True(took > 0 && took < time.Minute)
		w.is.Equal(len(found), 2) // every lane was read
		for _, m := range found["default"] {
			if m.Rank == -10 {
				return m.Since
			}
		}
		t.Fatal("a rank that has a mark keeps one")
		return time.Time{}
	}
	empty := mark(time.Time{})
	w.is.True(time.Since(empty) > 150*time.Millisecond && time.Since(empty) < 10*time.Second) // the mark is old enough that jobs in flight become ready after it

	margin = time.Minute
	w.is.True(time.Since(mark(time.Time{})) > 50*time.Second) // on a slow server, submissions may be in flight for longer
	margin = 0

	ids := w.put(urgent(10), urgent(10), urgent(9), urgent(10), func(n *store.NewJob) { n.Kind = "foreign" })
	second := w.ready(ids[0], 2*time.Hour)
	first := w.ready(ids[1], 3*time.Hour)
	w.ready(ids[2], 9*time.Hour)              // it has another rank
	w.ready(ids[4], 9*time.Hour)              // this pod does not handle the job's kind
	w.is.True(mark(time.Time{}).Equal(first)) // the mark is the ready time of the oldest claimable job of the rank
	w.is.True(mark(first.Add(time.Minute)).Equal(second))

	running := w.ready(ids[3], 20*time.Hour)
	w.is.Equal(w.claimOne(podID).ID, ids[3])
	w.is.True(mark(running).Equal(first)) // the mark ignores the running jobs
}

func TestSubmissionFromMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	waits := w.put(urgent(20))[0]
	at := w.ready(waits, time.Hour)
	submit := func(priority int, since time.Time) store.Place {
		n := w.new(func(n *store.NewJob) { n.Priority, n.Starts = priority, true })
		e, err := w.EnqueueFrom(w.ctx(), podID, n, []store.Mark{{Rank: -20, Since: since}})
		w.is.NoErr(err)
		return e.Places[n[0].ID]
	}
	w.is.Equal(submit(20, at), store.PlacedPending) // the new job has the same priority as the waiting one but is younger
	w.is.Equal(submit(10, at), store.PlacedPending) // the new job is less urgent
	w.is.Equal(submit(21, at), store.PlacedRunning) // the new job is more urgent
	w.is.Equal(submit(21, at.Add(time.Minute)), store.PlacedRunning)
	w.is.Equal(submit(19, at.Add(time.Minute)), store.PlacedPending) // this job waits behind the first job submitted in this test
}

func TestRankRange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var least, most int
	is.NoErr(pgtest.Pool(t).QueryRow(t.Context(), `select min(rank), max(rank) from `+store.AllRanks).Scan(&least, &most))
	is.Equal([]int{-most, -least}, []int{job.MinPriority, job.MaxPriority}) // ranks are negated priorities
}
