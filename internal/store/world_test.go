package store_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// lease is the length of pod leases in these tests. No test waits for a lease to expire (see world.lapse).
const lease = time.Minute

// world is a migrated database with a store, and helper methods for these tests. The complete history is checked when the test ends. The
// methods must be called from the test's own goroutine.
type world struct {
	*store.Store
	t    testing.TB
	is   *is.I
	pool *pgxpool.Pool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, pgtest.Pool(t), store.Options{Connections: 8})
}

func newWorldOn(t testing.TB, pool *pgxpool.Pool, o store.Options) *world {
	t.Helper()
	s, err := store.New(context.Background(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Store: s, t: t, is: is.New(t), pool: pool}
	t.Cleanup(func() {
		w.checkHistory()
		s.Close()
	})
	return w
}

func (w *world) ctx() context.Context { return w.t.Context() }

// pod registers a process and returns its pod id.
func (w *world) pod(name string) string {
	w.t.Helper()
	podID := uuid.NewString()
	w.is.NoErr(w.Register(w.ctx(), store.PodInfo{PodID: podID, Name: name, Kinds: []string{"k"}, Slots: 8}, lease))
	return podID
}

// new returns one new job of kind k in the default lane for each change, with that change applied.
func (w *world) new(changes ...func(*store.NewJob)) []store.NewJob {
	w.t.Helper()
	ids, err := w.NewIDs(w.ctx(), len(changes))
	w.is.NoErr(err)
	list := make([]store.NewJob, len(changes))
	for i, change := range changes {
		list[i] = store.NewJob{ID: ids[i], Kind: "k", Lane: "default", Args: json.RawMessage(`{"n": 1}`), Priority: 10}
		change(&list[i])
	}
	return list
}

func plain(*store.NewJob) {}

func about(subject string) func(*store.NewJob) { return func(n *store.NewJob) { n.Subject = subject } }

// then turns a job into the next step of a claim, and requests that it start on insert.
func then(parent *store.Claimed, changes ...func(*store.NewJob)) func(*store.NewJob) {
	return func(n *store.NewJob) {
		n.ParentID, n.PipelineID, n.Step, n.Starts = &parent.ID, parent.PipelineID, parent.Step+1, true
		n.Subject = parent.Subject
		for _, change := range changes {
			change(n)
		}
	}
}

// put enqueues jobs that do not request to start on insert, and returns their ids.
func (w *world) put(changes ...func(*store.NewJob)) []int64 {
	w.t.Helper()
	list := w.new(changes...)
	_, err := w.Enqueue(w.ctx(), uuid.NewString(), list)
	w.is.NoErr(err)
	ids := make([]int64, len(list))
	for i, n := range list {
		ids[i] = n.ID
	}
	return ids
}

// waits inserts jobs that wait for their subjects, and returns their ids. Until somebody admits them, they take no guards, even if their subjects
// are free.
func (w *world) waits(changes ...func(*store.NewJob)) (ids []int64) {
	w.t.Helper()
	list := w.new(changes...)
	w.is.NoErr(second(store.EnqueueIn(w.ctx(), w.Store, w.pool, list, false)))
	for _, n := range list {
		ids = append(ids, n.ID)
	}
	w.exec(`update trapeze.parked set why = 'subject' where id = any($1)`, ids)
	return ids
}

// claims claims up to n jobs of kind k in the default lane, including isolated ones.
func (w *world) claims(podID string, n int) []*store.Claimed {
	w.t.Helper()
	found, err := w.Claim(w.ctx(), podID, []store.Want{{Lane: "default", N: n}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	return found.Jobs
}

// one claims one job, and fails the test if there is none.
func (w *world) claimOne(podID string) *store.Claimed {
	w.t.Helper()
	found := w.claims(podID, 1)
	if len(found) != 1 {
		w.t.Fatalf("claimed %d jobs, want one", len(found))
	}
	return found[0]
}

func leaseOf(podID string, c *store.Claimed) job.Lease {
	return job.Lease{JobID: c.ID, Fence: c.Fence, Pod: podID}
}

func ending(c *store.Claimed) store.Ending {
	return store.Ending{ID: c.ID, Fence: c.Fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK}
}

func endingWith(c *store.Claimed, next store.NewJob) store.Ending {
	e := ending(c)
	e.Next = &next
	return e
}

// missed admits the jobs that nobody has admitted, and checks their number.
func (w *world) missed(n int) {
	w.t.Helper()
	list, err := w.AdmitMissed(w.ctx())
	w.is.NoErr(err)
	w.is.Equal(len(list), n)
}

// end finishes a claim, admits the next job of its subject, as an engine does, and returns the result. ok is false if its lease was lost.
func (w *world) end(podID string, e store.Ending) (store.Ended, bool) {
	w.t.Helper()
	ended, err := w.Finish(w.ctx(), podID, []store.Ending{e})
	w.is.NoErr(err)
	_, err = w.AdmitMissed(w.ctx())
	w.is.NoErr(err)
	end, ok := ended[e.ID]
	return end, ok
}

// lapse moves a pod's lease expiry into the past.
func (w *world) lapse(podID string) {
	w.t.Helper()
	w.exec(`update trapeze.pods set lease_until = now() - interval '1 second' where id = $1`, podID)
}

// recover runs the sweep that a pod would run, with pages of the given size. It returns the numbers of recovered jobs that are pending and
// that ended.
func (w *world) recover(podID string, pageSize int) (pending, ended int) {
	w.t.Helper()
	_, err := store.CloseLapsed(w.ctx(), w.Store, podID, lease, time.Time{})
	w.is.NoErr(err)
	podIDs, err := store.SweepsDue(w.ctx(), w.Store)
	w.is.NoErr(err)
	passed := 0
	for after := int64(0); ; {
		page, err := store.RecoverPage(w.ctx(), w.Store, podIDs, after, pageSize, 3)
		w.is.NoErr(err)
		pending, ended, after = pending+page.Pending, ended+len(page.Ended), page.Last
		passed += page.Passed
		if page.Seen < pageSize {
			break
		}
	}
	if passed == 0 {
		w.is.NoErr(store.Swept(w.ctx(), w.Store, podIDs))
	}
	return pending, ended
}

// dies lets a pod's lease expire and recovers its jobs.
func (w *world) dies(podID, by string) (pending, ended int) {
	w.t.Helper()
	w.lapse(podID)
	return w.recover(by, 1000)
}

func (w *world) at(id int64) job.JobRow {
	w.t.Helper()
	j, err := view.Job(w.ctx(), w.Store, id)
	w.is.NoErr(err)
	return j
}

// exec runs an SQL statement for a test. The statement refers to the schema as trapeze.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(context.Background(), w.In(sql), args...)
	w.is.NoErr(err)
}

func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	return pgtest.QueryOne[int](w.t, w.pool, w.In(sql), args...)
}

// freeze runs a statement in a separate transaction, which stays open and holds its locks until release is called.
func (w *world) freeze(sql string, args ...any) (release func(commit bool)) {
	w.t.Helper()
	conn, err := pgx.ConnectConfig(context.Background(), w.pool.Config().ConnConfig)
	w.is.NoErr(err)
	tx, err := conn.Begin(context.Background())
	w.is.NoErr(err)
	_, err = tx.Exec(context.Background(), w.In(sql), args...)
	w.is.NoErr(err)
	done := false
	release = func(commit bool) {
		if done {
			return
		}
		done = true
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(context.Background()); err != nil {
			w.t.Error(err)
		}
		_ = conn.Close(context.Background())
	}
	w.t.Cleanup(func() { release(false) })
	return release
}

// waiting blocks until n statements in this database are waiting for a lock.
func (w *world) waiting(n int) {
	w.t.Helper()
	pgtest.Wait(w.t, "statements that wait for a lock", func() bool {
		return w.count(`select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`) == n
	})
}

// async runs do in a goroutine and returns a function that waits for its result.
func async[T any](do func() (T, error)) func() (T, error) {
	type result struct {
		value T
		err   error
	}
	c := make(chan result, 1)
	go func() {
		v, err := do()
		c <- result{v, err}
	}()
	return func() (T, error) {
		r := <-c
		return r.value, r.err
	}
}

func idsOf(list []*store.Claimed) []int64 {
	ids := make([]int64, len(list))
	for i, c := range list {
		ids[i] = c.ID
	}
	return ids
}

func ptr[T any](v T) *T { return &v }

// ignoreLease ignores the lease that a command passes to it. It is used for commands on jobs that no transaction has locked.
func ignoreLease(job.Lease) {}

// unpaced runs maintenance without pauses.
func unpaced(context.Context) error { return nil }
