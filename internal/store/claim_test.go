package store_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

func TestClaimOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	urgency := func(p int) func(*store.NewJob) { return func(n *store.NewJob) { n.Priority = p } }
	first := w.put(urgency(10))
	low, high, later := w.put(urgency(-100)), w.put(urgency(100)), w.put(urgency(10))
	var order []int64
	for range 4 {
		order = append(order, w.claimOne(podID).ID)
	}
	w.is.Equal(order, slices.Concat(high, first, later, low)) // most urgent first, then oldest first
	w.is.Equal(len(w.claims(podID, 5)), 0)                    // no job is claimed twice
}

func TestClaimLaneCountsAndKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	other := func(n *store.NewJob) { n.Lane = "other" }
	foreign := func(n *store.NewJob) { n.Kind = "foreign" }
	w.put(foreign, plain, plain, plain, other, other, other)
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 2}, {Lane: "other", N: 1}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	lanes := map[string]int{}
	for _, c := range found.Jobs {
		lanes[c.Lane]++
		w.is.Equal(c.Kind, "k") // kinds that this pod does not handle are skipped
		w.is.Equal(string(c.Args), `{"n": 1}`)
	}
	w.is.Equal(lanes, map[string]int{"default": 2, "other": 1}) // no more than wanted in each lane
}

// A pod may have sent a claim just before its row was closed, or before another stream of the same worker was opened.
func TestForbiddenClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	closed := w.pod("closed")
	w.exec(`update trapeze.pods set closed_at = now() where id = $1`, closed)
	overtaken := uuid.NewString()
	open := func() store.WorkerRow {
		o, err := store.OpenWorker(w.ctx(), w.Store, store.PodInfo{PodID: overtaken, Name: "gpu-1", Kinds: []string{"k"}, Slots: 2}, "gpu", []byte("a key"), []byte("[]"), lease)
		w.is.NoErr(err)
		return o
	}
	first, latest := open(), open()
	w.put(plain)
	claims := func(s *store.Store, podID string, marks ...store.Mark) int {
		found, err := s.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 2, Marks: marks}}, []string{"k"}, nil, true)
		w.is.NoErr(err)
		return len(found.Jobs)
	}
	for _, marks := range [][]store.Mark{nil, {{Rank: -10, Since: time.Now().Add(-time.Hour)}}} {
		w.is.Equal(claims(w.Store, closed, marks...), 0)
		w.is.Equal(claims(w.OfStream(first.Stream), overtaken, marks...), 0)
		w.is.Equal(claims(w.Store, overtaken, marks...), 0)
	}
	w.is.Equal(claims(w.OfStream(latest.Stream), overtaken), 1)
}

// A claim does not lock the rows that it skips, so other transactions can change them immediately.
func TestClaimRowLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(about("busy"), about("busy"), func(n *store.NewJob) { n.Kind = "foreign" }, plain)
	w.is.Equal(w.claimOne(podID).ID, ids[0])
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(w.ctx()) }()
	_, err = store.Do(w.ctx(), w.Store, tx, store.ClaimSQL, fiveOf(podID))
	w.is.NoErr(err)
	unlocked, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[int64], `select id from (select id from trapeze.live for update skip locked) l
		union all select id from (select id from trapeze.parked for update skip locked) p order by id`)
	w.is.NoErr(err)
	w.is.Equal(unlocked, ids[:3])
}

func TestLanePositionOrder(t *testing.T) {
	is := is.New(t)
	now := time.Now()
	order := []store.LanePosition{{-1, now, 9}, {0, now, 1}, {0, now, 2}, {0, now.Add(1), 1}, {1, now, 1}}
	for i, p := range order {
		for k, q := range order {
			is.Equal(p.Compare(q), cmp.Compare(i, k))
		}
	}
}

func TestJobsBehindBlockedSubjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	running := w.put(about("busy"))
	w.is.Equal(w.claimOne(podID).ID, running[0])
	for range 50 {
		w.put(about("busy"))
	}
	behind := w.put(plain, about("free"))
	w.is.Equal(idsOf(w.claims(podID, 2)), behind) // the fifty blocked jobs at the head are skipped
}

func TestClaimBatchSameSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	list := w.put(about("s"), func(n *store.NewJob) { n.Subject, n.Priority = "s", 50 }, about("s"), about("t"), plain)
	got := idsOf(w.claims(podID, 5))
	slices.Sort(got)
	w.is.Equal(got, []int64{list[1], list[3], list[4]}) // only the most urgent job of subject s is claimed
	w.is.Equal(w.at(list[0]).Attempt, 0)                // the other jobs spend no attempt
	w.is.Equal(w.at(list[0]).Fence, int64(0))
	w.missed(0)
	w.is.Equal(len(w.claims(podID, 5)), 0) // no other job of s can be claimed while this one is running
}

// now() is fixed before a statement is planned, but the statement also sees jobs that are committed while it is being planned.
func TestClaimBeforeReadyTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	id := w.put(about("s"))[0]
	w.exec(`update trapeze.live set ready_at = now() + interval '1 minute'`)
	c := w.claimOne(a)
	w.is.Equal(*w.at(id).StartedAt, c.ReadyAt)
}

func TestCountersFromClaimToRecovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(about("s"))[0]
	counters := func(c *store.Claimed) [3]int { return [3]int{int(c.Fence), c.Attempt, c.Crashes} }

	c := w.claimOne(a)
	w.is.Equal(counters(c), [3]int{1, 1, 0})
	back, err := w.HandBack(w.ctx(), a, []job.Lease{leaseOf(a, c)}, "shutdown")
	w.is.NoErr(err)
	w.is.True(back[id])

	c = w.claimOne(a)
	w.is.Equal(counters(c), [3]int{2, 1, 0}) // a hand-back restores the attempt, but the fence still increases
	_, err = w.Park(w.ctx(), leaseOf(a, c), 0, store.Retry{Message: "boom"})
	w.is.NoErr(err)
	w.promote(1)

	c = w.claimOne(a)
	w.is.Equal(counters(c), [3]int{3, 2, 0}) // a retry spends its attempt
	_, err = w.Snooze(w.ctx(), leaseOf(a, c), 1, 0, store.Retry{Message: "not yet"})
	w.is.NoErr(err)
	w.promote(1)

	c = w.claimOne(a)
	w.is.Equal(counters(c), [3]int{4, 2, 0}) // a snooze does not spend its attempt
	w.is.Equal(first(w.dies(a, b)), 1)

	c = w.claimOne(b)
	w.is.Equal(counters(c), [3]int{5, 2, 1}) // crashes are counted separately
	_, ok := w.end(b, ending(c))
	w.is.True(ok)
	j := w.at(id)
	w.is.Equal([]int{int(j.Fence), j.Attempt, j.Crashes}, []int{5, 2, 1}) // the counters are kept after the job has ended
}

// promote promotes the due jobs and checks that there were exactly n.
func (w *world) promote(n int) {
	w.t.Helper()
	pending, waiting, err := w.Promote(w.ctx(), 100)
	w.is.NoErr(err)
	w.is.Equal(len(pending)+len(waiting), n)
}

func first[A, B any](a A, _ B) A { return a }

// PostgreSQL returns the rows of a statement before it commits. If the commit fails, the statement is resent.
func TestClaimFailedCommitRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain, plain, plain)
	w.exec(`create sequence public.tries`)
	w.exec(`create function public.fail_once() returns trigger language plpgsql as $$ begin
		if new.state = 'running' and nextval('public.tries') = 1 then
			raise exception 'as a serialization failure' using errcode = '40001';
		end if; return null; end $$`)
	w.exec(`create constraint trigger fail_once after update on trapeze.live deferrable initially deferred
		for each row execute function public.fail_once()`)
	w.is.Equal(len(w.claims(podID, 2)), 2)
	w.is.Equal(w.count(`select count(*) from trapeze.live where state = 'running'`), 2)
}
