package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// flood puts n pending jobs into the lane default, past the submission.
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

func TestAClaimBehindBlockedJobsTouchesNoMoreRowsThanItMayRead(t *testing.T) {
	t.Parallel()
	touchedBehindBlocked(t, 20_000)
}

// touchedBehindBlocked checks what claims touch behind n jobs that they cannot take.
func touchedBehindBlocked(t *testing.T, n int) {
	for name, block := range map[string]func(w *world){
		"of one busy subject":      func(w *world) { w.flood(n, "k", "busy") },
		"of a kind of no pod":      func(w *world) { w.flood(n, "foreign", "") },
		"of many kinds of no pod":  func(w *world) { w.flood(n/2, "foreign", ""); w.flood(n-n/2, "alien", "x") },
		"of both of these reasons": func(w *world) { w.flood(n/2, "k", "busy"); w.flood(n-n/2, "foreign", "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			boot := w.pod("a")
			w.exec(`select setval('trapeze.job_ids', $1)`, 4*n+1)
			w.put(about("busy"))
			w.one(boot) // which is busy from here on
			block(w)
			for _, table := range []string{"jobs", "live", "current_runs", "pods"} {
				w.exec(`vacuum analyze trapeze.` + table)
			}
			w.exec(`insert into trapeze.remote_workers (boot, owner, stream, stream_key) values ($1, 'ann', 1, '')`, boot)
			conn := pinned(t, w.pool.Config().ConnString())
			var id int64
			var at string
			w.is.NoErr(w.pool.QueryRow(w.ctx(), `select id, ready_at::text from trapeze.live where state = 'pending' order by id offset $1::int limit 1`,
				n/2).Scan(&id, &at))
			literals := map[string]string{"boot": "'" + boot + "'", "lanes": "'{default}'", "wants": "'{10}'", "kinds": "'{k}'", "isolated": "true",
				"since": "array[now() - interval '1 hour']", "after_ranks": "'{-101}'", "after_ready": "'{0001-01-01}'", "after_ids": "'{0}'",
				"reach": "'{1000}'", "above": "'{101}'", "stream": "1"}
			middle := maps.Clone(literals)
			middle["since"], middle["after_ranks"] = "'{0001-01-01}'", "'{-10}'"
			middle["after_ready"], middle["after_ids"] = fmt.Sprintf("'{%q}'", at), fmt.Sprintf("'{%d}'", id)
			first := maps.Clone(literals)
			first["since"] = "'{0001-01-01}'"
			for name, one := range map[string]struct {
				sql *statement
				by  map[string]string
			}{
				"claim":               {claimSQL, literals},
				"claim_since":         {claimSinceSQL, literals},
				"claim_from_position": {claimSinceSQL, middle},
				"worker_claim":        {guestClaimSQL, literals},
				"worker_claim_since":  {guestSinceSQL, literals},
				"marks":               {marksSQL, first},
			} {
				plan := explain(t, conn, name, one.sql.text, "analyze, buffers, format json", one.sql.inOrder(one.by)...)
				found := read(t, plan)
				t.Logf("%s: %+v", name, found)
				// Each row is read, filtered, and tried with its subject; where the page ends it is read once more.
				if found.Rows > 5*ClaimReach || found.Buffers > 12*ClaimReach {
					t.Errorf("%s behind %d jobs touches %+v", name, n, found)
				}
			}
		})
	}
}

// A claim with many lanes reads no more than one with a single lane.
func TestTheLanesOfAClaimShareWhatItMayRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boot := w.pod("a")
	w.exec(`select setval('trapeze.job_ids', 100001)`)
	w.flood(6000, "foreign", "")
	wants := []Want{{Lane: "default", N: 10}, {Lane: "b", N: 10}, {Lane: "c", N: 10}, {Lane: "d", N: 10}}
	claim := func() Reached {
		found, err := w.Claim(w.ctx(), boot, wants, []string{"k"}, true)
		w.is.NoErr(err)
		w.is.Equal(len(found.Reached), 4)
		w.is.Equal(found.Reached["b"].Last, nil) // nothing waits there
		return found.Reached["default"]
	}
	first := claim()
	w.is.Equal(first.Last.ID, int64(260))
	wants[0].After = first.Last // the only one that is continued: its share is all
	w.is.Equal(claim().Last.ID, int64(260+1010))
}

func TestClaimsThatContinueFindEveryJobOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boot := w.pod("a")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w.exec(`select setval('trapeze.job_ids', 100001)`)
	w.put(about("busy"))
	w.one(boot)
	w.flood(6000, "k", "")
	w.exec(`delete from trapeze.live where state = 'pending' and id % 2 = 0`) // gaps
	w.exec(`select setseed($1)`, random.Float64())
	for range 3 {
		w.exec(`update trapeze.live set priority = $1, ready_at = now() - interval '1 s' * (id % 7) where state = 'pending' and random() < 0.4`, random.IntN(21)-10)
	}
	w.exec(`update trapeze.live set kind = 'foreign' where state = 'pending' and random() < 0.7`)
	w.exec(`update trapeze.live set subject = 'busy' where state = 'pending' and random() < 0.7`)
	var want []int64
	w.is.NoErr(w.pool.QueryRow(w.ctx(), `select array_agg(id order by -priority, ready_at, id) from trapeze.live
		where state = 'pending' and kind = 'k' and subject = ''`).Scan(&want))
	var got []int64
	next := Want{Lane: "default"}
	for {
		next.N = 1 + random.IntN(20)
		found, err := w.Claim(w.ctx(), boot, []Want{next}, []string{"k"}, true)
		w.is.NoErr(err)
		got = append(got, idsOf(found.Jobs)...)
		slices.SortFunc(found.Jobs, func(a, b Claimed) int {
			if positionOf(a).Behind(positionOf(b)) {
				return 1
			}
			return -1
		})
		reached, short := found.Reached["default"]
		if short && reached.Last == nil {
			break
		}
		next.After = reached.Last
		if !short {
			w.is.Equal(len(found.Jobs), next.N)
			next.After = new(LanePosition)
			*next.After = positionOf(found.Jobs[len(found.Jobs)-1])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	w.is.True(len(want) > 50)
	w.is.Equal(got, want)
}

func positionOf(c Claimed) LanePosition {
	return LanePosition{Rank: -c.Priority, ReadyAt: c.ReadyAt, ID: c.ID}
}

// What a position passes by is what stands before it: in its own rank, and in the others what is older than the moment.
func TestAClaimFromAPositionAndAMomentPassesByWhatStandsBeforeThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boot := w.pod("a")
	ids := w.put(urgent(20), urgent(10), urgent(10), urgent(10), urgent(0), urgent(0))
	w.ready(ids[0], time.Minute) // more urgent than the position
	at := w.ready(ids[2], time.Minute)
	w.ready(ids[1], 2*time.Minute)
	w.ready(ids[3], time.Second)
	w.ready(ids[4], time.Hour) // older than the moment
	w.ready(ids[5], 5*time.Minute)
	found, err := w.Claim(w.ctx(), boot, []Want{{Lane: "default", N: 9, Since: time.Now().Add(-10 * time.Minute),
		After: &LanePosition{Rank: -10, ReadyAt: at, ID: ids[2]}}}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{ids[3], ids[5]})
	w.is.Equal(found.Reached["default"].Last, nil)
	w.is.True(time.Since(found.Reached["default"].Fresh) < time.Minute)
}

func TestAClaimAboveARankTakesMoreUrgentJobsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boot := w.pod("a")
	ids := w.put(urgent(10), urgent(20), urgent(0), urgent(11))
	rank := -10
	found, err := w.Claim(w.ctx(), boot, []Want{{Lane: "default", N: 9, Since: time.Now().Add(-time.Minute), Above: &rank}}, []string{"k"}, true)
	w.is.NoErr(err)
	w.is.Equal(idsOf(found.Jobs), []int64{ids[1], ids[3]})
}

func TestPositionsAreInTheOrderOfTheIndex(t *testing.T) {
	is := is.New(t)
	now := time.Now()
	order := []LanePosition{{-1, now, 9}, {0, now, 1}, {0, now, 2}, {0, now.Add(1), 1}, {1, now, 1}}
	for i, p := range order {
		for k, q := range order {
			is.Equal(p.Behind(q), i > k)
		}
	}
}

// The rows that a claim passes by are not locked: others may change them at once.
func TestAClaimLocksNothingThatItDoesNotTake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boot := w.pod("a")
	ids := w.put(about("busy"), about("busy"), plain)
	w.is.Equal(w.one(boot).ID, ids[0])
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = tx.Rollback(w.ctx()) }()
	_, err = do(w.ctx(), w.Store, tx, claimSQL, fiveOf(boot))
	w.is.NoErr(err)
	var locked []int64
	w.is.NoErr(w.pool.QueryRow(w.ctx(), `select array_agg(id) from (select id from trapeze.live where state = 'pending'
		for update skip locked) l`).Scan(&locked))
	w.is.Equal(locked, []int64{ids[1]})
	w.is.NoErr(tx.Rollback(w.ctx()))
	w.is.Equal(w.at(ids[2]).State, job.Pending)
}
