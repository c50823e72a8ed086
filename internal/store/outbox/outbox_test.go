package outbox

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
	"github.com/trapeze-run/trapeze/job"
)

// world is a migrated database that has a lane with an engine, and that engine's outbox.
type world struct {
	*store.Store
	*Outbox
	t  testing.TB
	is *is.I
}

// soon makes jobs without a recorded start overdue immediately.
const soon = time.Nanosecond

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{Store: plantest.Open(t, store.New), t: t, is: is.New(t)}
	w.Outbox = New(w.Store, Options{Engine: "far", RetakeAfter: soon})
	w.exec(`insert into trapeze.lanes (name, engine) values ('video', 'far')`)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	pgtest.Exec(w.t, w.Pool(), sql, args...)
}

func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	return pgtest.QueryOne[int](w.t, w.Pool(), sql, args...)
}

// put enqueues one job in the video lane for each change, and applies the change to it.
func (w *world) put(changes ...func(*store.NewJob)) []int64 {
	w.t.Helper()
	ids, err := w.Store.NewIDs(w.t.Context(), len(changes))
	w.is.NoErr(err)
	list := make([]store.NewJob, len(changes))
	for i, change := range changes {
		list[i] = store.NewJob{ID: ids[i], Kind: "k", Lane: "video", Args: json.RawMessage(`{"n": 1}`), Priority: 10}
		change(&list[i])
	}
	_, err = w.Enqueue(w.t.Context(), uuid.NewString(), list)
	w.is.NoErr(err)
	return ids
}

func plain(*store.NewJob) {}

func about(subject string) func(*store.NewJob) { return func(n *store.NewJob) { n.Subject = subject } }

// due returns the jobs to start.
func (w *world) due() []Item {
	w.t.Helper()
	w.scan.forget()
	list, err := w.Due(w.t.Context(), 100)
	w.is.NoErr(err)
	return list
}

// one returns the only job to start.
func (w *world) dueItem() Item {
	w.t.Helper()
	list := w.due()
	if len(list) != 1 {
		w.t.Fatalf("%d jobs are due, want one", len(list))
	}
	return list[0]
}

func (w *world) start(i Item, run string) {
	w.t.Helper()
	w.is.NoErr(w.Started(w.t.Context(), i.ID, i.Epoch(), run))
}

func (w *world) end(i Item, e End) job.State {
	w.t.Helper()
	state, err := w.End(w.t.Context(), i.ID, i.Epoch(), e)
	w.is.NoErr(err)
	return state
}

var succeeded = End{State: job.Succeeded, Result: json.RawMessage(`"r"`)}

func TestEngineJobStartAndEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.put(func(n *store.NewJob) { n.Planned, n.Trace = json.RawMessage(`[{"kind":"next"}]`), "00-aa-bb-01" })[0]
	i := w.dueItem()
	w.is.Equal(i.ID, id)
	w.is.Equal(string(i.Args), `{"n": 1}`)
	w.is.Equal(string(i.Planned), `[{"kind":"next"}]`)
	w.is.Equal(i.Trace, "00-aa-bb-01")
	w.is.Equal(i.Epoch(), int64(1))
	w.is.Equal(i.Run, "")
	again := w.dueItem() // the forwarder died before it recorded the start
	w.is.Equal(again.Epoch(), i.Epoch())
	w.start(i, "run 1")
	w.start(i, "run 1") // both the forwarder and the run record the start
	w.is.Equal(len(w.due()), 0)
	w.is.Equal(w.end(i, End{State: job.Succeeded, Result: json.RawMessage(`"r"`), Attempts: 3}), job.Succeeded)
	w.is.Equal(w.end(i, End{State: job.Failed}), job.Succeeded) // a repeated end writes nothing
	w.is.Equal(w.count(`select count(*) from trapeze.done where id = $1 and attempt = 3 and result::text = '"r"' and lane = 'video'`, id), 1)
	w.is.Equal(w.count(`select count(*) from trapeze.outbox`), 0)
	w.is.Equal(len(w.due()), 0)
	w.is.True(errors.Is(w.Started(t.Context(), id, i.Epoch(), "run 2"), ErrInactive)) // started after the engine has forgotten run 1
}

func TestConcurrentRunsOfEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	i := w.dueItem()
	w.start(i, "run 1")
	w.is.True(errors.Is(w.Started(t.Context(), i.ID, i.Epoch(), "run 2"), ErrInactive))
}

func TestFencesAcrossPodsAndEngines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := uuid.NewString()
	w.is.NoErr(w.Register(t.Context(), store.PodInfo{PodID: podID, Name: "a", Kinds: []string{"k"}, Slots: 8}, time.Minute))
	onPod := func() int64 {
		t.Helper()
		found, err := w.Claim(t.Context(), podID, []store.Want{{Lane: "video", N: 1}}, []string{"k"}, nil, true)
		w.is.NoErr(err)
		w.is.Equal(len(found.Jobs), 1)
		w.handBack(podID, found.Jobs[0])
		return found.Jobs[0].Fence
	}
	w.put(plain)
	last := int64(0)
	rises := func(fence int64) { t.Helper(); w.is.True(fence > last); last = fence }
	for range 3 {
		rises(onPod())
		rises(onPod())
		for range 2 {
			i := w.dueItem()
			rises(Fence(i.Epoch(), 1))
			rises(Fence(i.Epoch(), 2))
			rises(Fence(i.Epoch(), 5_000_000))
			w.is.NoErr(w.Again(t.Context(), i.ID, i.Epoch(), "lost"))
			w.exec(`update trapeze.live set crashes = 0`)
		}
	}
	// A restored backup begins a new history, whose fences are higher than all earlier ones.
	w.exec(`update trapeze.cluster set epoch = epoch + 1`)
	i := w.dueItem()
	rises(Fence(i.Epoch(), 1))
	w.is.True(last > 10_000_000_000)
	w.is.NoErr(w.Again(t.Context(), i.ID, i.Epoch(), "lost"))
	rises(onPod())
}

func (w *world) handBack(podID string, c *store.Claimed) {
	w.t.Helper()
	_, err := w.HandBack(w.t.Context(), podID, []job.Lease{{JobID: c.ID, Fence: c.Fence, Pod: podID}}, "test")
	w.is.NoErr(err)
}

func TestEndOfEarlierEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	lost := w.dueItem()
	w.start(lost, "run 1")
	w.is.NoErr(w.Again(t.Context(), lost.ID, lost.Epoch(), "the namespace was restored"))
	again := w.dueItem()
	w.is.True(again.Epoch() > lost.Epoch())
	_, err := w.End(t.Context(), lost.ID, lost.Epoch(), succeeded)
	w.is.True(errors.Is(err, ErrInactive))
	w.is.True(errors.Is(w.Started(t.Context(), lost.ID, lost.Epoch(), "run 1"), ErrInactive))
	w.is.True(errors.Is(w.Again(t.Context(), lost.ID, lost.Epoch(), "again"), ErrInactive))
	w.start(again, "run 2")
	w.is.Equal(w.end(again, succeeded), job.Succeeded)
}

func TestLostEngineRunCrashCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ended []job.End
	w.Outbox.o.Ended = func(e job.End) { ended = append(ended, e) }
	w.put(plain)
	for range 3 {
		i := w.dueItem()
		w.start(i, "run")
		w.is.NoErr(w.Again(t.Context(), i.ID, i.Epoch(), "workflow not found"))
	}
	w.is.Equal(w.count(`select count(*) from trapeze.done where state = 'failed' and reason = 'crashed' and error = 'workflow not found'`), 1)
	w.is.Equal(len(ended), 1)
	w.is.Equal(ended[0].ErrorClass, job.ClassCrashLimit)
}

// The reply to the commit of an end is lost. The outbox reports the end, and the next job of its subject, nevertheless and only once.
func TestEngineEndReplyLost(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, i Item){
		"of an end":                        func(w *world, i Item) { w.is.Equal(w.end(i, End{State: job.Failed}), job.Failed) },
		"of a lost run at its crash limit": func(w *world, i Item) { w.is.NoErr(w.Again(w.t.Context(), i.ID, i.Epoch(), "lost")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var ended []job.End
			var admitted []store.AdmittedJob
			proxy := pgtest.NewProxy(t, w.Pool().Config().ConnString())
			s, err := store.New(t.Context(), pgtest.Connect(t, proxy.URL()), store.Options{})
			w.is.NoErr(err)
			t.Cleanup(s.Close)
			w.Outbox = New(s, Options{Engine: "far", MaxCrashes: 1, Ended: func(e job.End) { ended = append(ended, e) },
				Admitted: func(jobs []store.AdmittedJob) { admitted = append(admitted, jobs...) }})
			w.put(about("s"), about("s"))
			i := w.dueItem()
			w.start(i, "run")
			cut, _ := proxy.CutReply("update trapeze.live l set attempt")
			end(w, i)
			<-cut
			w.is.Equal(w.end(i, succeeded), job.Failed) // a repeated end is not reported
			w.is.Equal(len(ended), 1)
			w.is.Equal(ended[0].State, job.Failed)
			w.is.Equal(len(admitted), 1)
		})
	}
}

func TestSubjectMutexInEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.put(about("s"), about("s"), about("other"))
	first := w.due()
	w.is.Equal(len(first), 2)
	w.is.Equal(w.end(first[0], succeeded), job.Succeeded)
	w.is.NoErr(w.Started(t.Context(), first[1].ID, first[1].Epoch(), "run"))
	w.is.Equal(w.dueItem().ID, ids[1])
}

// The outbox reports each job that it makes pending: after an end, after the loss of a run, and after the insertion of a next step.
func TestOutboxReportsAdmittedJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var admitted []store.AdmittedJob
	w.Outbox.o.Admitted = func(jobs []store.AdmittedJob) { admitted = append(admitted, jobs...) }
	expect := func(priorities ...int) {
		t.Helper()
		var found []int
		for _, j := range admitted {
			found = append(found, j.Priority)
		}
		w.is.Equal(found, priorities)
		admitted = nil
	}
	urgent := func(priority int) func(*store.NewJob) {
		return func(n *store.NewJob) { n.Subject, n.Priority = "s", priority }
	}
	w.put(about("s"))
	i := w.dueItem()
	second := w.put(urgent(20), urgent(30))[1]
	w.start(i, "run 1")
	w.end(i, succeeded)
	expect(30)
	i = w.dueItem()
	w.is.Equal(i.ID, second)
	w.put(urgent(40))
	w.is.NoErr(w.Again(t.Context(), i.ID, i.Epoch(), "the run is lost"))
	expect(40) // the lost run's job yields
	i = w.dueItem()
	w.is.Equal(i.Priority, 40)
	step := w.put(func(n *store.NewJob) { n.Subject = "t" })[0]
	next, err := w.Store.NewIDs(t.Context(), 1)
	w.is.NoErr(err)
	w.end(i, End{State: job.Succeeded, Next: &store.NewJob{ID: next[0], Kind: "k", Lane: "video", Subject: "t", Priority: 50, Args: json.RawMessage("{}")}})
	expect(50, 30) // the step precedes the pending job of its subject
	w.is.Equal(w.count(`select count(*) from trapeze.parked where id = $1 and why = 'subject'`, step), 1)
}

func TestPodClaimOfEngineSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(about("s"))
	w.dueItem()
	podID := uuid.NewString()
	w.is.NoErr(w.Register(t.Context(), store.PodInfo{PodID: podID, Name: "a", Kinds: []string{"k"}, Slots: 8}, time.Minute))
	w.put(func(n *store.NewJob) { n.Subject, n.Lane = "s", "default" })
	found, err := w.Claim(t.Context(), podID, []store.Want{{Lane: "default", N: 1}}, []string{"k"}, nil, true)
	w.is.NoErr(err)
	w.is.Equal(len(found.Jobs), 0)
}

func TestEngineLaneSlotLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`update trapeze.lanes set slots = 2 where name = 'video'`)
	w.put(plain, plain, plain)
	first := w.due()
	w.is.Equal(len(first), 2)
	w.is.Equal(len(w.due()), 2) // the same two jobs, whose starts have not been recorded
	for _, i := range first {
		w.start(i, "run")
	}
	w.is.Equal(len(w.due()), 0)
	_, err := admin.Cancel(t.Context(), w.Store, first[0].ID, 0, true, "ana", func(job.Lease) {})
	w.is.NoErr(err)
	w.is.Equal(len(w.due()), 1) // a stopped job frees its slot
}

func TestClosedEngineLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	for _, closed := range []string{"enabled = false", "drained = true", "engine = 'postgres'", "next_engine = 'postgres'"} {
		w.exec(`update trapeze.lanes set ` + closed + ` where name = 'video'`)
		w.is.Equal(len(w.due()), 0) // closed
		w.exec(`update trapeze.lanes set enabled = true, drained = false, engine = 'far', next_engine = null where name = 'video'`)
	}
	w.exec(`update trapeze.queue_state set frozen = true`)
	w.is.Equal(len(w.due()), 0)
	w.exec(`update trapeze.queue_state set frozen = false`)
	w.dueItem()
}

func TestCancelledEngineRunDelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	i := w.dueItem()
	w.start(i, "run 1")
	_, err := admin.Cancel(t.Context(), w.Store, i.ID, 0, false, "ana", func(job.Lease) {})
	w.is.NoErr(err)
	for range 2 {
		list, err := w.Cancels(t.Context(), 10)
		w.is.NoErr(err)
		w.is.Equal(list, []Cancel{{ID: i.ID, Fence: i.Fence, Reason: job.ReasonCancelled, Run: "run 1"}})
	}
	w.is.NoErr(w.Delivered(t.Context(), Cancel{ID: i.ID, Fence: i.Fence, Reason: job.ReasonCancelled}))
	list, err := w.Cancels(t.Context(), 10)
	w.is.NoErr(err)
	w.is.Equal(len(list), 0)
	w.is.Equal(w.end(i, succeeded), job.Cancelled) // the request came first
}

func TestAStoppedRunIsTerminated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	i := w.dueItem() // the start is not recorded: the forwarder may have started the run
	_, err := admin.Cancel(t.Context(), w.Store, i.ID, 0, true, "ana", func(job.Lease) {})
	w.is.NoErr(err)
	list, err := w.Cancels(t.Context(), 10)
	w.is.NoErr(err)
	w.is.Equal(list, []Cancel{{ID: i.ID, Fence: i.Fence, Reason: job.ReasonForceCancelled}})
	w.is.True(errors.Is(w.Started(t.Context(), i.ID, i.Epoch(), "run 1"), ErrInactive))
	_, err = w.End(t.Context(), i.ID, i.Epoch(), succeeded)
	w.is.True(errors.Is(err, ErrInactive))
	w.is.Equal(len(w.due()), 0)
	w.is.Equal(w.count(`select count(*) from trapeze.outbox`), 0) // removed by the last call
}

func TestStackRequestForEngineJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	i := w.dueItem()
	_, err := admin.AskStack(t.Context(), w.Store, i.ID, "ana")
	w.is.True(errors.Is(err, job.ErrNotRunning)) // no pod is running the job
	name, err := NameOf(t.Context(), w.Store, PodID("far"))
	w.is.NoErr(err)
	w.is.Equal(name, "far")
	w.is.True(IsEngine(PodID("far")) && !IsEngine(uuid.NewString()))
}

func TestCancelBeforeEngineStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	i := w.dueItem()
	_, err := admin.Cancel(t.Context(), w.Store, i.ID, 0, false, "ana", func(job.Lease) {})
	w.is.NoErr(err)
	list, err := w.Cancels(t.Context(), 10)
	w.is.NoErr(err)
	w.is.Equal(len(list), 0) // no run is known
	w.is.Equal(len(w.due()), 0)
	w.is.Equal(w.count(`select count(*) from trapeze.done where state = 'cancelled' and reason = 'cancelled'`), 1)
	w.is.True(errors.Is(w.Started(t.Context(), i.ID, i.Epoch(), "run 1"), ErrInactive))
}

func TestEngineNextStepInPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.put(func(n *store.NewJob) { n.Submitter, n.Pipeline = "ana", nil })[0]
	i := w.dueItem()
	next, err := w.Outbox.NewIDs(t.Context(), 1)
	w.is.NoErr(err)
	e := succeeded
	e.Next = &store.NewJob{ID: next[0], Kind: "k2", Lane: "default", Args: json.RawMessage(`{}`), Priority: 10, Approved: true}
	w.is.Equal(w.end(i, e), job.Succeeded)
	w.is.Equal(w.end(i, e), job.Succeeded)
	w.is.Equal(w.count(`select count(*) from trapeze.jobs j join trapeze.live l using (id)
		where j.id = $1 and j.parent_id = $2 and j.pipeline_id = $2 and j.step = 1 and j.submitter = 'ana' and l.state = 'pending'`, next[0], id), 1)
}

func TestAnEndCountsItsBranch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	group := w.put(func(n *store.NewJob) { n.Lane = "default" })[0]
	w.exec(`insert into trapeze.fan_outs (id, fence, branches, open, failed, fail_fast, outcome) values ($1, 1, 2, 2, 0, false, 'ok')`, group)
	no := int32(1)
	w.put(func(n *store.NewJob) { n.Group, n.No, n.PipelineID, n.Step = &group, &no, group, 1 })
	w.end(w.dueItem(), succeeded)
	w.is.Equal(w.count(`select open from trapeze.fan_outs where id = $1`, group), 1)
}

func TestEngineMoveOfLockedLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(plain)
	w.is.NoErr(w.Tx(t.Context(), func(tx pgx.Tx) error {
		lanes, err := tx.Exec(t.Context(), openLanesSQL, "far", 10)
		w.is.NoErr(err)
		w.is.Equal(lanes.RowsAffected(), int64(1))
		err = w.Tx(t.Context(), func(other pgx.Tx) error {
			w.is.NoErr(w.BoundLocks(t.Context(), other))
			_, err := other.Exec(t.Context(), `update trapeze.lanes set next_engine = 'postgres' where name = 'video'`)
			return err
		})
		pg, ok := errors.AsType[*pgconn.PgError](err)
		w.is.True(ok && pg.Code == "55P03") // the forwarder that is claiming jobs has locked the lane
		return nil
	}))
}

func TestEngineScanPastRunningJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var c scan
	now := time.Now()
	at := c.begin()
	is.Equal(at.InfinityModifier, pgtype.NegativeInfinity) // the first scan reads whole lanes
	c.began = c.began.Add(-time.Hour)
	c.end(at, now, false)
	is.Equal(c.begin().InfinityModifier, pgtype.NegativeInfinity) // some jobs were left unclaimed
	c.began = c.began.Add(-time.Hour)
	c.end(at, now, true)
	at = c.begin()
	is.Equal(at.Time, now.Add(-scanMargin)) // after a scan that took an hour, no whole scan follows for twenty hours
	is.True(time.Until(c.whole) > 19*time.Hour)
	c.end(at, now.Add(time.Minute), true)
	is.Equal(c.begin().Time, now.Add(time.Minute).Add(-scanMargin))
	c.whole = time.Now()
	is.Equal(c.begin().InfinityModifier, pgtype.NegativeInfinity)
	c.end(at, now, true)
	c.forget()
	is.Equal(c.begin().InfinityModifier, pgtype.NegativeInfinity)
}

func TestJobOrderAtSlotLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`update trapeze.lanes set slots = 1 where name = 'video'`)
	ids := w.put(plain, plain, plain)
	w.exec(`update trapeze.live set ready_at = now() - interval '1 minute'`)
	w.scan.forget()
	for range 3 {
		list, err := w.Due(t.Context(), 100)
		w.is.NoErr(err)
		w.is.Equal(len(list), 1)
		w.is.Equal(list[0].ID, ids[0]) // the oldest, even though no scan reads the whole lane
		ids = ids[1:]
		w.start(list[0], "run")
		w.put(plain)
		w.scan.mu.Lock()
		w.scan.whole = time.Now().Add(time.Hour) // whole scans are expensive
		w.scan.mu.Unlock()
		w.end(list[0], succeeded)
	}
}

func TestUnlimitedLaneHandOffBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.o.MaxOpen = 2
	w.put(plain, plain, plain)
	list, err := w.Due(t.Context(), 100)
	w.is.NoErr(err)
	w.is.Equal(len(list), 2)
	w.start(list[0], "run")
	w.start(list[1], "run")
	more, err := w.Due(t.Context(), 100)
	w.is.NoErr(err)
	w.is.Equal(len(more), 0)
	w.end(list[0], succeeded)
	more, err = w.Due(t.Context(), 100)
	w.is.NoErr(err)
	w.is.Equal(len(more), 1)
}

// An engine's run can settle its job with the statements that pods use, because they accept an epoch's lease just as they accept a claim's.
func TestEpochAsPodClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name, engine, next_engine) values ('leaves', 'far', 'postgres'), ('other', 'near', null)`)
	lanes, err := w.Lanes(t.Context())
	w.is.NoErr(err)
	w.is.Equal(lanes, []string{"leaves", "video"}) // a lane that is moving to another engine still has running jobs

	w.put(func(n *store.NewJob) { n.MaxCrashes = new(int); *n.MaxCrashes = 7 })
	i := w.dueItem()
	w.is.Equal(*i.MaxCrashes, 7)
	w.is.True(!i.ClaimedAt.IsZero())
	w.start(i, "run")
	_, err = w.Snooze(t.Context(), w.Lease(i.ID, i.Epoch()), 3, 0, store.Retry{})
	w.is.NoErr(err)
	w.is.NoErr(w.Remove(t.Context(), i.ID, i.Epoch()))
	w.is.Equal(w.count(`select count(*) from trapeze.outbox`), 0)
	_, _, err = w.Promote(t.Context(), 10)
	w.is.NoErr(err)
	again := w.dueItem()
	w.is.Equal(again.Snoozes, 3)
	w.is.True(again.Epoch() > i.Epoch())
	w.is.NoErr(w.Remove(t.Context(), i.ID, i.Epoch())) // does not remove the row of the later epoch
	w.is.Equal(w.count(`select count(*) from trapeze.outbox`), 1)
	w.start(again, "run")
	w.is.NoErr(w.Again(t.Context(), again.ID, again.Epoch(), "lost"))
	w.is.Equal(w.dueItem().Crashes, 1)
}

// A job with an older due time may become claimable after a scan has read its lane.
func TestScanForgottenWhileRunning(t *testing.T) {
	var c scan
	c.whole = time.Now().Add(time.Hour)
	c.end(c.begin(), time.Now(), true)
	since := c.begin()
	c.forget()
	c.end(since, time.Now(), true)
	if again := c.begin(); again.InfinityModifier != pgtype.NegativeInfinity {
		t.Error("the next scan does not read whole lanes:", again)
	}
}
