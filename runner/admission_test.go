package runner_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// ran records the order in which jobs ran.
type ran struct {
	mu  sync.Mutex
	ids []int64
}

func (r *ran) handler(_ context.Context, j *raw) (*runner.Outcome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, j.ID())
	return nil, nil
}

// Recovery leaves the subject's guard with the dead pod's job, which therefore runs first.
func TestSubjectOrderAfterPodDeath(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	a := start(t, cut, named("a"), map[string]handler{"k": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ids := []int64{enqueueStarted(t, a, rawArgs("k"), runner.Subject("s"))}
	var order ran
	b := start(t, direct, named("b"), map[string]handler{"k": order.handler})
	for range 3 {
		ids = append(ids, enqueue(t, b, rawArgs("k"), runner.Subject("s")))
	}
	is.Equal(column[string](t, direct, `select why from trapeze.parked`), []string{"subject", "subject", "subject"})
	proxy.Blackhole()
	for _, id := range ids {
		is.Equal(waitEnded(t, b, id).State, job.Succeeded)
	}
	is.Equal(order.ids, ids)
	is.Equal(get(t, b, ids[0]).Crashes, 1)
	proxy.Pass() // so that the first pod can stop
	checkHistory(t, direct, b)
}

// A caller's transaction takes no guard. The pod that its notification wakes promotes the job.
func TestSubjectInCallersTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var order ran
	r := start(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{"k": order.handler})
	other := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	var ids []int64
	for _, by := range []*runner.Runner{r, other, other} {
		is.NoErr(by.Tx(t.Context(), func(tx pgx.Tx) error {
			made, err := by.EnqueueTx(t.Context(), tx, rawArgs("k"), runner.Subject("s"))
			ids = append(ids, made.ID)
			return err
		}))
		is.Equal(waitEnded(t, r, ids[len(ids)-1]).State, job.Succeeded)
	}
	is.Equal(order.ids, ids)
	is.Equal(eventsOf(t, r, ids[1]), []string{"job.enqueued", "job.promoted", "job.claimed", "job.succeeded"})
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.subjects where state = 'held'`), 0)
	checkHistory(t, pool, r)
}

// A job of a caller's transaction is promoted while its subject is taken. It then waits until the subject is free.
func TestPromotionOfTakenSubject(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var order ran
	r := start(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		<-wait
		return order.handler(ctx, j)
	}})
	ids := []int64{enqueueStarted(t, r, rawArgs("k"), runner.Subject("s"))}
	is.NoErr(r.Tx(t.Context(), func(tx pgx.Tx) error {
		made, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"), runner.Subject("s"))
		ids = append(ids, made.ID)
		return err
	}))
	pgtest.Wait(t, "the job is promoted", func() bool {
		return slices.Equal(eventsOf(t, r, ids[1]), []string{"job.enqueued", "job.promoted"})
	})
	is.Equal(column[string](t, pool, `select why from trapeze.parked`), []string{"subject"})
	open()
	is.Equal(waitEnded(t, r, ids[1]).State, job.Succeeded)
	is.Equal(order.ids, ids)
	checkHistory(t, pool, r)
}

// A submission finds its subject taken, and commits only after the subject's job has ended and found no next job.
func TestSubmissionDuringSubjectsEnd(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create function hangs() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock_shared(7); return new; end'`)
	exec(t, pool, `create trigger hangs after insert on trapeze.parked for each row execute function hangs()`)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	first := enqueueStarted(t, r, rawArgs("k"), runner.Subject("s"))
	holder, err := pool.Acquire(t.Context())
	is.NoErr(err)
	defer holder.Release()
	_, err = holder.Exec(t.Context(), `select pg_advisory_lock(7)`)
	is.NoErr(err)
	submitted := make(chan int64, 1)
	go func() {
		made, err := r.Enqueue(t.Context(), rawArgs("k"), runner.Subject("s"))
		if err != nil {
			t.Error(err)
		}
		submitted <- made.ID
	}()
	pgtest.Wait(t, "the submission hangs", func() bool {
		return queryOne[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`) == 1
	})
	open()
	is.Equal(waitEnded(t, r, first).State, job.Succeeded)
	enqueued := enqueue(t, r, rawArgs("k"), runner.Subject("other"))
	is.Equal(waitEnded(t, r, enqueued).State, job.Succeeded) // the admission after the first end is over
	_, err = holder.Exec(t.Context(), `select pg_advisory_unlock(7)`)
	is.NoErr(err)
	is.Equal(waitEnded(t, r, <-submitted).State, job.Succeeded)
}

// A pending job that holds its subject's guard and cannot start yet gives the guard to a more urgent job.
func TestUrgentJobOfPendingSubject(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var order ran
	r := start(t, pool, runner.Options{Slots: 1, PollInterval: seldom}, map[string]handler{"k": order.handler, "blocks": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	enqueueStarted(t, r, rawArgs("blocks"))
	holder := func() int64 {
		return queryOne[int64](t, pool, `select coalesce(min(job_id), 0) from trapeze.subjects where state = 'held'`)
	}
	low := enqueue(t, r, rawArgs("k"), runner.Subject("s"))
	is.Equal(holder(), low)
	high := enqueue(t, r, rawArgs("k"), runner.Subject("s"), runner.Priority(20))
	pgtest.Wait(t, "the urgent job has the guard", func() bool {
		is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.subjects join trapeze.parked on id = job_id where state = 'held'`), 0)
		return holder() == high
	})
	open()
	is.Equal(waitEnded(t, r, low).State, job.Succeeded)
	is.Equal(order.ids, []int64{high, low})
	checkHistory(t, pool, r)
}

// A recovered job holds the guard, and an urgent job waits for it. The pod that has recovered the job lets it yield; no poll does.
func TestRecoveredJobYields(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	var order ran
	r := start(t, pool, runner.Options{Slots: 1, PollInterval: seldom}, map[string]handler{"k": order.handler, "blocks": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	enqueueStarted(t, r, rawArgs("blocks"))
	const dead = "00000000-0000-4000-8000-00000000dead"
	low := enqueue(t, r, rawArgs("k"), runner.Subject("s"))
	exec(t, pool, `update trapeze.live set state = 'running', pod = $2, fence = 1, attempt = 1, claimed_at = now(), started_at = now() where id = $1`, low, dead)
	high := enqueue(t, r, rawArgs("k"), runner.Subject("s"), runner.Priority(20))
	exec(t, pool, `insert into trapeze.pods (id, name, lease_until, closed_at, closed) values ($1, 'dead', now(), now(), 'lapsed')`, dead)
	pgtest.Wait(t, "the urgent job has the guard", func() bool {
		return queryOne[bool](t, pool, `select exists (select from trapeze.subjects where job_id = $1 and state = 'held')`, high)
	})
	open()
	is.Equal(waitEnded(t, r, low).Crashes, 1)
	is.Equal(order.ids, []int64{high, low})
	is.Equal(metricValue(t, r, "trapeze_admissions_missed_total"), 0.0)
}

// Submissions of two pods and of a process that runs no jobs wait for the same subjects. The processes admit them; no poll does.
func TestSubjectsWithoutPolls(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	handlers := map[string]handler{"k": succeed, "chain": func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Then(rawArgs("k"), runner.Subject("1")), nil
	}}
	pods := []*runner.Runner{start(t, pool, runner.Options{PollInterval: seldom}, handlers), start(t, pool, rarely, handlers)}
	var submitting sync.WaitGroup
	for n, by := range append(pods, newRunner(t, pool, runner.Options{}, handlers)) {
		submitting.Go(func() {
			for i := range 40 {
				kind := []string{"k", "k", "chain"}[i%3]
				if _, err := by.Enqueue(t.Context(), rawArgs(kind), runner.Subject([]string{"1", "2"}[(i+n)%2]), runner.Priority(10+i%4)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	submitting.Wait()
	quiet(t, pool)
	for _, r := range pods {
		is.Equal(metricValue(t, r, "trapeze_admissions_missed_total"), 0.0)
	}
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), 3*(40+13))
	checkHistory(t, pool, pods[0])
}

// A process that has ended a job and then failed has not admitted the next one. The next poll of any pod does.
func TestMissedAdmissionByPoll(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var order ran
	r := newRunner(t, pool, runner.Options{Slots: 1, PollInterval: 100 * time.Millisecond}, map[string]handler{"k": order.handler})
	var ids []int64
	for _, subject := range []string{"b", "a", "a", "b"} {
		ids = append(ids, enqueue(t, r, rawArgs("k"), runner.Subject(subject), runner.Delay(time.Hour)))
	}
	exec(t, pool, `update trapeze.parked set why = 'subject', run_after = now() - interval '1 minute'`)
	run(t, r)
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.True(metricValue(t, r, "trapeze_admissions_missed_total") >= 2) // the first job of each subject
	slices.Sort(order.ids)
	is.Equal(order.ids, ids)
	checkHistory(t, pool, r)
}

// A pod that stops admits the next job of a subject after its last job has ended, and leaves it to another pod.
func TestAdmissionBeforePodLeaves(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := newRunner(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	stop, done := runInBackground(t, r)
	first := enqueueStarted(t, r, rawArgs("k"), runner.Subject("s"))
	second := enqueue(t, r, rawArgs("k"), runner.Subject("s"))
	is.Equal(queryOne[string](t, pool, `select why from trapeze.parked`), "subject")
	stop()
	pgtest.Wait(t, "the pod drains", func() bool { ready, reasons := r.Ready(); return !ready && reasons[0] == "draining" })
	open()
	is.NoErr(<-done)
	is.Equal(get(t, r, first).State, job.Succeeded)
	is.Equal(column[int64](t, pool, `select id from trapeze.live where state = 'pending'`), []int64{second})
	is.Equal(column[int64](t, pool, `select job_id from trapeze.subjects where state = 'held'`), []int64{second})
	checkHistory(t, pool, r)
}
