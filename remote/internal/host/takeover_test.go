package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

func TestSlotWithHeartbeatsElsewhere(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.Start(t, pool, often, noKinds), podtest.Start(t, pool, often, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	w.keepBeating(t, second)
	for range 2 {
		foreign(t, first, podtest.RawArgs("far"))
		a := w.takes(t, second)
		pgtest.Wait(t, "the job has run longer than the acknowledgement timeout", func() bool {
			return pgtest.QueryOne[bool](t, pool, `select now() - claimed_at > interval '700 ms' from trapeze.live where id = $1`, a.ID)
		})
		_, err := w.reports(t, second, a, nil, nil)
		is.NoErr(err)
	}
}

func TestJobAcknowledgedThroughOtherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.New(t, pool, often, noKinds), podtest.Start(t, pool, often, noKinds)
	stop := podtest.Run(t, first)
	w := newFar()
	w.connect(t, first, 1, "far")
	foreign(t, second, podtest.RawArgs("far"))
	a := w.takes(t, second)
	stop()
	w.connect(t, second, 1, "far")
	w.keepBeating(t, second)
	_, err := w.reports(t, second, a, nil, nil)
	is.NoErr(err)
}

func TestRemoteWorkerWithUnreadableRow(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, often, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	w.keepBeating(t, r)
	pgtest.Exec(t, pool, `alter table trapeze.remote_workers rename column owner to unreadable`)
	pgtest.Exec(t, pool, `update trapeze.remote_workers set stream = stream + 1`) // to the pod, this looks exactly like a closed row
	<-w.session.Over()
	is.True(errors.Is(w.session.Why(), host.ErrSuperseded)) // only the worker's next attempt to open a stream shows which of the two happened
}

func TestLateStraySearchNewerStream(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{LeaseDuration: time.Minute, HeartbeatInterval: 20 * time.Second}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	w.connect(t, r, 1, "far") // on a reconnect, the pod searches for claims that never reached the worker
	id := foreign(t, r, podtest.RawArgs("other"))
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for blocked := false; !blocked; {
		tx, err := pool.Begin(t.Context())
		is.NoErr(err)
		_, err = tx.Exec(t.Context(), `lock table trapeze.live in access exclusive mode`)
		is.NoErr(err)
		for until := time.Now().Add(200 * time.Millisecond); !blocked && time.Now().Before(until); <-pace.C {
			blocked = pgtest.QueryOne[bool](t, pool, `select exists (select from pg_stat_activity where datname = current_database()
				and wait_event_type = 'Lock' and query like '%where l.pod = any($1::uuid[]) order by l.id%')`)
		}
		if blocked { // during the search, the worker moves to another pod, which sends it a job
			_, err = tx.Exec(t.Context(), `update trapeze.remote_workers set stream = stream + 1`)
			is.NoErr(err)
			_, err = tx.Exec(t.Context(), `update trapeze.live set state = 'running', pod = $1, fence = fence + 1, attempt = attempt + 1 where id = $2`, w.id, id)
			is.NoErr(err)
			is.NoErr(tx.Commit(t.Context()))
		} else {
			is.NoErr(tx.Rollback(t.Context()))
		}
	}
	time.Sleep(300 * time.Millisecond) // only waiting can show that nothing happens
	is.Equal(podtest.Get(t, r, id).State, job.Running)
}

func TestClaimsForUnnoticedDepartedWorker(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	seldom := runner.Options{LeaseDuration: time.Minute, HeartbeatInterval: 20 * time.Second}
	first, second := podtest.Start(t, pool, seldom, noKinds), podtest.Start(t, pool, seldom, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	silent := w.sent
	w.connect(t, second, 1, "far") // the first pod has not noticed that its connection is broken
	foreign(t, second, podtest.RawArgs("far"))
	foreign(t, second, podtest.RawArgs("far"))
	w.takes(t, second)
	select {
	case <-silent:
		t.Fatal("the worker got more jobs than it has slots")
	case <-time.After(1200 * time.Millisecond): // two polls
	}
	is.Equal(podtest.Running(t, pool), 1)
}
