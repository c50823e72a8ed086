package store_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// flood inserts n pending jobs into the default lane with plain SQL.
func (w *world) flood(n int, kind, subject string) {
	w.t.Helper()
	w.exec(`with made as (
			insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id)
			select g, $2, 'default', $3, '{}', g
			from generate_series((select coalesce(max(id), 0) + 1 from trapeze.jobs), (select coalesce(max(id), 0) from trapeze.jobs) + $1::int) g
			returning id
		)
		insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
		select id, now(), 1, 10, 'pending', 'default', $2, $3 from made`, n, kind, subject)
	w.t.Cleanup(func() {
		w.exec(`truncate trapeze.live, trapeze.jobs, trapeze.done, trapeze.parked, trapeze.job_events, trapeze.current_runs`)
	})
}

// A claim for many lanes reads no more rows than a claim for a single lane.
func TestClaimReadLimitAcrossLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`select setval('trapeze.job_ids', 100001)`)
	w.flood(6000, "foreign", "")
	wants := []store.Want{{Lane: "default", N: 10}, {Lane: "b", N: 10}, {Lane: "c", N: 10}, {Lane: "d", N: 10}}
	claim := func() store.Reached {
		found, err := w.Claim(w.ctx(), podID, wants, []string{"k"}, true)
		w.is.NoErr(err)
		w.is.Equal(len(found.Reached), 4)
		w.is.Equal(found.Reached["b"].Last, nil) // no job is waiting in this lane
		return found.Reached["default"]
	}
	first := claim()
	w.is.Equal(first.Last.ID, int64(260))
	wants[0].After = first.Last // only this lane is continued, so the whole share goes to it
	w.is.Equal(claim().Last.ID, int64(260+1010))
}

// While jobs are submitted, finished and handed back, claims that stop at the maximum number of rows are checked against a model. A sweep
// of several claims skips no job that it can claim, and follows the lane's order. Once nothing changes anymore, one sweep claims all
// remaining jobs.
func TestContinuedClaimsMatchModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w.exec(`select setval('trapeze.job_ids', 100001)`)
	w.flood(6000, "k", "")
	w.put(func(n *store.NewJob) { n.Subject, n.Priority = "busy", job.MaxPriority })
	busy := w.one(podID)
	w.exec(`delete from trapeze.live where state = 'pending' and id % 2 = 0`) // leave gaps between the ids
	w.exec(`select setseed($1)`, random.Float64())
	for range 3 {
		w.exec(`update trapeze.live set priority = $1, ready_at = now() - interval '1 s' * (id % 7) where state = 'pending' and random() < 0.4`, random.IntN(21)-10)
	}
	w.exec(`update trapeze.live set kind = 'foreign' where state = 'pending' and random() < 0.7`)
	w.exec(`update trapeze.live set subject = 'busy' where state = 'pending' and random() < 0.7`)
	waiting, found := w.waitingInOrder(), map[int64]int{}
	for _, p := range waiting {
		if p.Kind == "k" && p.Subject == "" {
			found[p.ID] = 0
		}
	}
	w.is.True(len(found) > 50)

	cut, given := 0, map[int64]bool{}
	next := store.Want{Lane: "default"}
	claim := func() (jobs []*store.Claimed, over bool) {
		t.Helper()
		next.N = 1 + random.IntN(20)
		want, last := modelReach(waiting, next, busy.ID != 0)
		got, err := w.Claim(w.ctx(), podID, []store.Want{next}, []string{"k"}, true)
		w.is.NoErr(err)
		slices.SortFunc(got.Jobs, func(a, b *store.Claimed) int {
			if positionOf(a).Behind(positionOf(b)) {
				return 1
			}
			return -1
		})
		w.is.Equal(idsOf(got.Jobs), want) // the claim returns the first claimable jobs among those within its reach
		reached, short := got.Reached["default"]
		if short && reached.Last != nil {
			w.is.Equal(reached.Last.ID, last)
			cut++
		}
		for _, c := range got.Jobs {
			found[c.ID]++
			if c.Subject == "busy" {
				busy = c
			}
		}
		if short && reached.Last == nil {
			w.is.Equal(last, int64(0)) // the claim read the lane to its end
			next.After = nil
			return got.Jobs, true
		}
		if next.After = reached.Last; !short {
			next.After = new(positionOf(got.Jobs[len(got.Jobs)-1]))
		}
		return got.Jobs, false
	}
	var running []*store.Claimed
	for range 60 {
		jobs, _ := claim()
		running = append(running, jobs...)
		switch random.IntN(4) {
		case 0:
			for _, id := range w.put(urgent(random.IntN(31)-15), about("busy")) {
				found[id] += 0
			}
		case 1:
			if busy.ID != 0 {
				w.end(podID, ending(busy))
				busy = &store.Claimed{}
			}
		case 2:
			if i := random.IntN(len(running) + 1); i < len(running) && running[i].ID != busy.ID && running[i].Subject == "" && !given[running[i].ID] {
				given[running[i].ID] = true
				_, err := w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, running[i])}, "test")
				w.is.NoErr(err)
			}
		}
		waiting = w.waitingInOrder()
	}
	w.is.True(cut > 0)
	next.After = nil
	for over, claims := false, 0; !over; claims++ {
		_, over = claim()
		waiting = w.waitingInOrder()
		w.is.True(claims < len(found)+len(waiting)/store.ClaimReach+2)
	}
	for _, p := range waiting {
		w.is.True(p.Kind == "foreign" || p.Subject == "busy") // no remaining job could run
	}
	for id, times := range found {
		if at := w.at(id); times == 0 && at.Subject == "" || times > 1 && !given[id] {
			t.Errorf("job %d, %s, was claimed %d times", id, at.State, times)
		}
	}
}

// waitingRow is a pending job with the columns that the claim model uses.
type waitingRow struct {
	ID       int64
	Kind     string
	Subject  string
	Priority int
	ReadyAt  time.Time
}

// waitingInOrder returns the pending jobs, the most urgent first.
func (w *world) waitingInOrder() []waitingRow {
	w.t.Helper()
	list, err := store.Rows(w.ctx(), w.Store, pgx.RowToStructByPos[waitingRow],
		`select id, kind, subject, priority, ready_at from trapeze.live where state = 'pending' order by -priority, ready_at, id`)
	w.is.NoErr(err)
	return list
}

// modelReach returns the jobs that a claim for kind k takes, and the id of the last row that it reads if it stops at the maximum. last is 0
// if the lane ends first or the claim finds all the jobs it wants.
func modelReach(waiting []waitingRow, want store.Want, busy bool) (taken []int64, last int64) {
	read, picked := 0, 0
	taken = []int64{}
	for _, p := range waiting {
		if want.After != nil && !(store.LanePosition{Rank: -p.Priority, ReadyAt: p.ReadyAt, ID: p.ID}).Behind(*want.After) {
			continue
		}
		read++
		if p.Kind == "k" && (p.Subject == "" || !busy) {
			if picked++; p.Subject == "" || !slices.ContainsFunc(waiting, func(q waitingRow) bool { return q.Subject != "" && slices.Contains(taken, q.ID) }) {
				taken = append(taken, p.ID)
			}
		}
		if picked == want.N {
			return taken, 0
		}
		if read == want.N+store.ClaimReach {
			return taken, p.ID
		}
	}
	return taken, 0
}

func positionOf(c *store.Claimed) store.LanePosition {
	return store.LanePosition{Rank: -c.Priority, ReadyAt: c.ReadyAt, ID: c.ID}
}

// A position excludes the jobs before it in its own rank, and jobs in less urgent ranks that are older than the given time.
func TestClaimFromScanPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(urgent(20), urgent(10), urgent(10), urgent(10), urgent(0), urgent(0))
	w.ready(ids[0], time.Minute) // this job is more urgent than the position
	at := w.ready(ids[2], time.Minute)
	w.ready(ids[1], 2*time.Minute)
	w.ready(ids[3], time.Second)
	w.ready(ids[4], time.Hour) // this job is older than the given time
	w.ready(ids[5], 5*time.Minute)
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 9, Since: time.Now().Add(-10 * time.Minute),
		After: &store.LanePosition{Rank: -10, ReadyAt: at, ID: ids[2]}}}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{ids[3], ids[5]})
	w.is.Equal(found.Reached["default"].Last, nil)
	w.is.True(time.Since(found.Reached["default"].Fresh) < time.Minute)
}

func TestClaimAboveRank(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(urgent(10), urgent(20), urgent(0), urgent(11))
	rank := -10
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: 9, Since: time.Now().Add(-time.Minute), Above: &rank}}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{ids[1], ids[3]})
	found, err = w.ClaimAhead(w.ctx(), podID, []store.Want{{Lane: "default", Ahead: 9, Above: &rank}}, []string{"k"}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 0) // no jobs are claimed ahead of time either
}

func TestLanePositionOrder(t *testing.T) {
	is := is.New(t)
	now := time.Now()
	order := []store.LanePosition{{-1, now, 9}, {0, now, 1}, {0, now, 2}, {0, now.Add(1), 1}, {1, now, 1}}
	for i, p := range order {
		for k, q := range order {
			is.Equal(p.Behind(q), i > k)
		}
	}
}

// A claim does not lock the rows that it skips, so other transactions can change them immediately.
func TestClaimRowLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	ids := w.put(about("busy"), about("busy"), plain)
	w.is.Equal(w.one(podID).ID, ids[0])
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(w.ctx()) }()
	_, err = store.Do(w.ctx(), w.Store, tx, store.ClaimSQL, fiveOf(podID))
	w.is.NoErr(err)
	var locked []int64
	w.is.NoErr(w.pool.QueryRow(w.ctx(), `select array_agg(id) from (select id from trapeze.live where state = 'pending'
		for update skip locked) l`).Scan(&locked))
	w.is.Equal(locked, []int64{ids[1]})
	w.is.NoErr(tx.Rollback(w.ctx()))
	w.is.Equal(w.at(ids[2]).State, job.Pending)
}

// If a claim that may take nothing reported a position, a sweep would continue behind that position and leave the jobs before it for later.
func TestForbiddenClaimPosition(t *testing.T) {
	w := newWorld(t)
	closed := w.pod("closed")
	w.exec(`update trapeze.pods set closed_at = now() where id = $1`, closed)
	overtaken := uuid.NewString()
	first, err := store.OpenWorker(w.ctx(), w.Store, store.PodInfo{PodID: overtaken, Name: "gpu-1", Kinds: []string{"k"}, Slots: 2}, "gpu", []byte("a key"), []byte("[]"), lease)
	w.is.NoErr(err)
	_, err = store.OpenWorker(w.ctx(), w.Store, store.PodInfo{PodID: overtaken, Name: "gpu-1", Kinds: []string{"k"}, Slots: 2}, "gpu", []byte("a key"), []byte("[]"), lease)
	w.is.NoErr(err)
	w.flood(store.ClaimReach+10, "k", "")
	w.flood(store.ClaimReach+10, "foreign", "")
	for name, s := range map[string]struct {
		*store.Store
		podID string
	}{"a pod whose row is closed": {w.Store, closed}, "a worker whose stream another has overtaken": {w.OfStream(first.Stream), overtaken}} {
		for _, since := range []time.Time{{}, time.Now().Add(-time.Hour)} {
			found, err := s.Claim(w.ctx(), s.podID, []store.Want{{Lane: "default", N: 2, Since: since}}, []string{"k"}, true)
			w.is.NoErr(err)
			if len(found.Jobs) != 0 || len(found.Reached) != 0 {
				t.Errorf("%s claimed %d jobs and reached %v", name, len(found.Jobs), found.Reached)
			}
		}
	}
}
