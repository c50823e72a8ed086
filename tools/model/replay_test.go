package model

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// These tests replay traces of the model with the statements of the store. A process of a replay can stop before its commit: the triggers run when
// its statement has written everything.

const pauses = `
create function pause() returns trigger language plpgsql as $$ begin
	perform pg_advisory_xact_lock_shared(current_setting('replay.lock', true)::bigint);
	return null;
end $$;
create trigger pause after insert or update or delete on trapeze.subjects for each statement execute function pause()`

type replay struct {
	*store.Store
	t     *testing.T
	is    *is.I
	pool  *pgxpool.Pool
	pod   string
	locks int
}

func newReplay(t *testing.T) *replay {
	r := &replay{t: t, is: is.New(t), pool: pgtest.Pool(t), pod: uuid.NewString()}
	_, err := r.pool.Exec(t.Context(), pauses)
	r.is.NoErr(err)
	r.Store = r.process(0)
	r.is.NoErr(r.Register(t.Context(), store.PodInfo{PodID: r.pod, Name: "a", Kinds: []string{"k"}, Slots: 8}, time.Minute))
	return r
}

// process returns a store whose statements need an advisory lock before their commit.
func (r *replay) process(lock int) *store.Store {
	config := r.pool.Config()
	config.ConnConfig.RuntimeParams["replay.lock"] = fmt.Sprint(lock)
	pool, err := pgxpool.NewWithConfig(r.t.Context(), config)
	r.is.NoErr(err)
	s, err := store.New(r.t.Context(), pool, store.Options{Connections: 4})
	r.is.NoErr(err)
	r.t.Cleanup(func() { s.Close(); pool.Close() })
	return s
}

// pauses returns a process that stops before its commit, until release is called.
func (r *replay) pauses() (s *store.Store, release func()) {
	tx := begin(r.t, r.pool)
	r.locks++
	_, err := tx.Exec(r.t.Context(), `select pg_advisory_xact_lock($1)`, r.locks)
	r.is.NoErr(err)
	return r.process(r.locks), func() { r.is.NoErr(tx.Rollback(r.t.Context())) }
}

// stops runs do until its commit, and returns a function that lets it end.
func (r *replay) stops(do func(s *store.Store) error) (proceed func()) {
	s, release := r.pauses()
	end := r.waits(r.locks, func() error { return do(s) })
	return func() { release(); end() }
}

// waits starts do, waits until a process waits for another transaction or, with an advisory lock, at its commit, and returns a function that waits until do has ended.
func (r *replay) waits(lock int, do func() error) (end func()) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	r.waiting(lock)
	return func() { r.is.NoErr(<-done) }
}

func (r *replay) waiting(lock int) {
	pgtest.Wait(r.t, "a process waits for a lock", func() bool {
		var waits bool
		err := r.pool.QueryRow(r.t.Context(), `select exists (select from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and a.datname = current_database() and case when $1 = 0 then l.locktype = 'transactionid' else l.locktype = 'advisory' and l.objid = $1 end)`, lock).Scan(&waits)
		return err == nil && waits
	})
}

var key = []store.Line{{Kind: "k", Subject: "s"}}

func (r *replay) job(priority int) store.NewJob {
	ids, err := r.NewIDs(r.t.Context(), 1)
	r.is.NoErr(err)
	return store.NewJob{ID: ids[0], Kind: "k", Lane: "default", Subject: "s", Args: json.RawMessage(`{}`), Priority: priority}
}

func (r *replay) submit(list ...store.NewJob) (ids []int64) {
	_, err := r.Enqueue(r.t.Context(), r.pod, list)
	r.is.NoErr(err)
	for _, n := range list {
		ids = append(ids, n.ID)
	}
	return ids
}

// ends claims the pending job and ends it.
// ends claims the pending job and ends it.
func (r *replay) ends(s *store.Store) error {
	c := r.claim(s)
	_, err := s.Finish(context.Background(), r.pod, []store.Ending{{ID: c.ID, Fence: c.Fence, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK}})
	return err
}

// retries claims the pending job and parks it for an hour. Unlike an end, this frees the guard without choosing the next job.
func (r *replay) retries() {
	c := r.claim(r.Store)
	_, err := r.Park(r.t.Context(), job.Lease{JobID: c.ID, Fence: c.Fence, Pod: r.pod}, time.Hour, store.Retry{})
	r.is.NoErr(err)
}

func (r *replay) claim(s *store.Store) *store.Claimed {
	found, err := s.Claim(context.Background(), r.pod, []store.Want{{Lane: "default", N: 1}}, []string{"k"}, nil, true)
	r.is.NoErr(err)
	r.is.Equal(len(found.Jobs), 1)
	return found.Jobs[0]
}

func freed(s *store.Store) error {
	_, err := s.AdmitNext(context.Background(), key...)
	return err
}

func (r *replay) parked() { _, err := r.AdmitNext(r.t.Context(), key...); r.is.NoErr(err) }

// holds checks that the job, or none, is pending and holds the guard.
func (r *replay) holds(ids ...int64) {
	r.t.Helper()
	r.is.Equal(fmt.Sprint(pgtest.Column[int64](r.t, r.pool, `select id from trapeze.live where state = 'pending'`)), fmt.Sprint(ids))
	r.is.Equal(fmt.Sprint(pgtest.Column[int64](r.t, r.pool, `select job_id from trapeze.subjects where state = 'held'`)), fmt.Sprint(ids))
}

func TestReplayEndWithHeir(t *testing.T) {
	r := newReplay(t)
	list := r.submit(r.job(0), r.job(0))
	r.is.NoErr(r.ends(r.Store))
	r.holds(list[1])
}

func TestReplaySubmissionDuringEnd(t *testing.T) {
	r := newReplay(t)
	r.submit(r.job(0))
	ended := r.stops(r.ends)
	next := r.submit(r.job(0))
	r.parked() // the end has not been committed
	ended()
	r.holds()
	r.is.NoErr(freed(r.Store))
	r.holds(next...)
}

func TestReplayUrgentJobDuringAdmission(t *testing.T) {
	r := newReplay(t)
	r.submit(r.job(0), r.job(0))
	urgent := r.job(1)
	submitted := r.stops(func(s *store.Store) error {
		_, err := s.Enqueue(context.Background(), r.pod, []store.NewJob{urgent})
		return err
	})
	r.retries()
	admitted := r.stops(freed) // its snapshot does not show the urgent job
	submitted()
	settled := r.waits(0, func() error {
		_, err := r.AdmitNext(context.Background(), key...)
		return err
	})
	admitted()
	settled()
	r.holds(urgent.ID)
}

func TestReplayAdmissionWithoutGuard(t *testing.T) {
	r := newReplay(t)
	list := r.submit(r.job(0), r.job(0))
	tx := begin(t, r.pool)
	_, err := tx.Exec(t.Context(), `with gone as (delete from trapeze.live where id = $1)
		update trapeze.subjects set state = 'free' where job_id = $1`, list[0])
	r.is.NoErr(err)
	r.is.NoErr(tx.Commit(t.Context()))
	taken := begin(t, r.pool) // a submission that takes the guard
	_, err = taken.Exec(t.Context(), `insert into trapeze.subjects (kind, subject, job_id, state) values ('k', 's', -1, 'held')`)
	r.is.NoErr(err)
	process, release := r.pauses()
	admitted := r.waits(0, func() error { return freed(process) })
	r.is.NoErr(taken.Commit(t.Context()))
	r.waiting(r.locks)
	_, err = r.pool.Exec(t.Context(), `delete from trapeze.subjects where job_id = -1`)
	r.is.NoErr(err)
	r.is.NoErr(freed(r.Store)) // after the end of the other job; the first admission has locked the parked job
	r.holds()
	release()
	admitted()
	r.holds(list[1])
}

func TestReplayLockedFirstJob(t *testing.T) {
	r := newReplay(t)
	list := r.submit(r.job(0), r.job(0), r.job(0))
	tx := begin(t, r.pool)
	_, err := tx.Exec(t.Context(), `select from trapeze.parked where id = $1 for update`, list[1])
	r.is.NoErr(err)
	r.is.NoErr(r.ends(r.Store))
	r.is.NoErr(freed(r.Store))
	r.holds()
	r.is.NoErr(tx.Commit(t.Context()))
	r.parked()
	r.holds(list[1])
}

func TestReplayCancelDuringAdmission(t *testing.T) {
	r := newReplay(t)
	list := r.submit(r.job(0), r.job(0), r.job(0))
	r.retries()
	admitted := r.stops(freed)
	cancelled := r.waits(0, func() error {
		_, err := admin.Cancel(context.Background(), r.Store, list[1], 0, false, "ann", func(job.Lease) {})
		return err
	})
	admitted()
	cancelled()
	r.is.NoErr(freed(r.Store))
	r.holds(list[2])
}

func TestReplayTwoPromotions(t *testing.T) {
	r := newReplay(t)
	later, urgent := r.job(0), r.job(1)
	_, err := store.EnqueueIn(t.Context(), r.Store, r.pool, []store.NewJob{later}, false)
	r.is.NoErr(err)
	_, err = store.EnqueueIn(t.Context(), r.Store, r.pool, []store.NewJob{urgent}, false)
	r.is.NoErr(err)
	promote := func(s *store.Store) error {
		_, waiting, err := s.Promote(context.Background(), 1)
		if err == nil {
			_, err = s.AdmitNext(context.Background(), waiting...)
		}
		return err
	}
	first := r.stops(promote)
	second := r.waits(0, func() error { return promote(r.Store) })
	first()
	second()
	r.holds(urgent.ID)
}
