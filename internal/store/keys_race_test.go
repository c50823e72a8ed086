package store_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// overLimitSQL counts the groups of jobs in live that have more jobs than the lane's limit of 2 or the kind's limit of 1 allows, and the subjects of which
// two jobs are live.
const overLimitSQL = `select (select count(*) from (select from trapeze.live where key is not null group by key, lane having count(*) > 2) g)
	+ (select count(*) from (select from trapeze.live where key is not null and kind = 'few' group by key having count(*) > 1) g)
	+ (select count(*) from (select from trapeze.live where subject <> '' group by kind, subject having count(*) > 1) g)`

// Four processes submit, claim, end and admit jobs of the same keys. The limits hold at every moment, and no admission is forgotten.
func TestConcurrentKeyAdmissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.limits (scope, name, key, slots) values ('lane', 'default', '*', 2)`)
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('few', 1)`)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var working sync.WaitGroup
	for i := range 4 {
		podID := w.pod(uuid.NewString())
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		working.Go(func() {
			for range keyRounds {
				if err := w.work(context.Background(), r, podID, true); err != nil {
					t.Errorf("process %d: %v", i, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	for looking := true; looking; {
		select {
		case <-done:
			looking = false
		default:
		}
		w.is.Equal(w.count(overLimitSQL), 0)
	}
	w.exchanges()
	podID, r := w.pod("last"), rand.New(rand.NewPCG(seed, 9))
	for left, idle := math.MaxInt, 0; idle < 50; idle++ {
		n := w.count(`select (select count(*) from trapeze.live where state = 'pending') + (select count(*) from trapeze.parked)`)
		if n == 0 {
			t.Logf("%d deadlocks", w.deadlocks())
			return
		}
		if n < left {
			left, idle = n, 0
		}
		w.is.NoErr(w.work(context.Background(), r, podID, false))
	}
	t.Fatal("jobs never run")
}

// work submits some jobs, claims some and ends them, as a process does. It can be called concurrently.
func (w *world) work(ctx context.Context, r *rand.Rand, podID string, submits bool) error {
	draw := func(n *store.NewJob) {
		n.Kind, n.Key, n.Subject, n.Priority = pick(r, "k", "few"), pick(r, "", "a", "a", "b", "c"), pick(r, "", "", "s", "t"), pick(r, 10, 20)
	}
	var lines []store.Line
	if submits {
		ids, err := w.NewIDs(ctx, 3)
		if err != nil {
			return err
		}
		var list []store.NewJob
		for _, id := range ids {
			n := store.NewJob{ID: id, Lane: "default", Args: []byte(`{}`)}
			draw(&n)
			list = append(list, n)
		}
		places, err := w.Enqueue(ctx, podID, list)
		if err != nil {
			return err
		}
		for _, n := range list {
			if p := places[n.ID]; p == store.PlacedWaiting || p == store.PlacedKeyed {
				lines = append(lines, n.Lines()...)
			}
		}
		if _, err := w.AdmitNext(ctx, lines...); err != nil {
			return err
		}
	}
	found, err := w.Claim(ctx, podID, []store.Want{{Lane: "default", N: 4}}, []string{"k", "few"}, nil, true)
	if err != nil {
		return err
	}
	lines = nil
	for _, c := range found.Jobs {
		if r.IntN(8) == 0 {
			if _, err := w.HandBack(ctx, podID, []job.Lease{leaseOf(podID, c)}, "test"); err != nil {
				return err
			}
			lines = append(lines, c.Lines()...)
			continue
		}
		e := ending(c)
		e.InLine = len(c.Lines()) > 0
		if submits && r.IntN(2) == 0 {
			ids, err := w.NewIDs(ctx, 1)
			if err != nil {
				return err
			}
			n := store.NewJob{ID: ids[0], Lane: "default", Args: []byte(`{}`), ParentID: &c.ID, PipelineID: c.PipelineID, Step: c.Step + 1}
			draw(&n)
			n.Key, n.Subject = pick(r, c.Key, n.Key), pick(r, c.Subject, n.Subject)
			e.Next = &n
		}
		ended, err := w.Finish(ctx, podID, []store.Ending{e})
		if err != nil {
			return err
		}
		got, ok := ended[c.ID]
		if !ok { // another transaction has locked the row for a moment
			lines = append(lines, c.Lines()...)
			if _, err := w.HandBack(ctx, podID, []job.Lease{leaseOf(podID, c)}, "locked"); err != nil {
				return err
			}
			continue
		}
		subject := c.Subject
		if got.Heir != nil {
			subject = ""
		}
		lines = append(lines, store.Lines(c.Kind, subject, c.Key)...)
		if e.Next != nil {
			lines = append(lines, e.Next.Lines()...)
		}
	}
	_, err = w.AdmitNext(ctx, slices.Compact(lines)...)
	return err
}

// exchanges admits the jobs that nobody has admitted, and checks that they only get places and subjects that others leave.
func (w *world) exchanges() {
	w.t.Helper()
	live := func() map[int64]keyedRow {
		list, err := store.Rows(w.ctx(), w.Store, pgx.RowToStructByPos[keyedRow], keyedRowsSQL)
		w.is.NoErr(err)
		rows := map[int64]keyedRow{}
		for _, row := range list {
			rows[row.ID] = row
		}
		return rows
	}
	before := live()
	missed, err := w.AdmitMissed(w.ctx())
	w.is.NoErr(err)
	if after := live(); !exchanged(before, after) {
		w.t.Errorf("a poll admits %+v, which nobody has admitted\nlive before: %v\nlive after: %v", missed, before, after)
	}
}

// An operator's change of a job's priority is kept, even if the job gets its place at the same moment.
func TestAdmissionKeepsChangedPriority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var keys []string
	for i := range 60 {
		keys = append(keys, fmt.Sprint("key ", i))
	}
	for range 4 {
		var jobs []func(*store.NewJob)
		for _, key := range keys {
			jobs = append(jobs, keyed(key))
		}
		ids := w.put(jobs...)
		var admitting sync.WaitGroup
		admitting.Go(func() {
			if _, err := w.AdmitKeys(w.ctx(), keys); err != nil {
				t.Error(err)
			}
		})
		for _, id := range ids {
			w.is.NoErr(admin.SetPriority(w.ctx(), w.Store, id, 50, false, "ann"))
		}
		admitting.Wait()
	}
	w.is.Equal(w.count(`select count(*) from trapeze.live l where l.priority <> 50
		or l.event_no <> (select count(*) from trapeze.job_event e where e.job = l.id)`), 0)
}
