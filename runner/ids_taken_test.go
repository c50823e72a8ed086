package runner_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// occupy inserts jobs, as another pod would, with the next n ids of each block that a pod has reserved.
func occupy(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, pool, `with taken as (
			insert into trapeze.jobs (id, kind, lane, args, pipeline_id)
			select b.last + n, 'theirs', 'default', '{}', b.last + n
			from (select max(id) as last from trapeze.jobs group by (id - 1) / 1000) b, generate_series(1, $1::int) n returning id
		), events as (
			insert into trapeze.job_events (job, event_no, to_state, event) select id, 1, 'pending', 'job.enqueued' from taken
		)
		insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
		select id, 'scheduled', now() + interval '1 day', 1, 10, 'default', 'theirs', '' from taken`, n)
}

// If PostgreSQL does not report a failover that loses an id reservation, two pods can end up with the same ids.
func TestJobIDAlreadyInUse(t *testing.T) {
	t.Parallel()
	submits := func(args job.Args, options ...runner.EnqueueOption) func(*testing.T, *pgxpool.Pool, *runner.Runner, string) error {
		return func(t *testing.T, _ *pgxpool.Pool, r *runner.Runner, _ string) error {
			_, err := r.Enqueue(t.Context(), args, options...)
			return err
		}
	}
	inTx := func(options ...runner.EnqueueOption) func(*testing.T, *pgxpool.Pool, *runner.Runner, string) error {
		return func(t *testing.T, pool *pgxpool.Pool, r *runner.Runner, _ string) error {
			return r.Tx(t.Context(), func(tx pgx.Tx) error {
				_, err := r.EnqueueTx(t.Context(), tx, rawArgs("plain"), options...)
				return err
			})
		}
	}
	manyInTx := func(n int) func(*testing.T, *pgxpool.Pool, *runner.Runner, string) error {
		return func(t *testing.T, _ *pgxpool.Pool, r *runner.Runner, _ string) error {
			var ids []int64
			err := r.Tx(t.Context(), func(tx pgx.Tx) (err error) {
				ids, err = r.EnqueueManyTx(t.Context(), tx, many("plain", n))
				return err
			})
			if err == nil {
				_, err = r.Wait(t.Context(), ids[n-1])
			}
			return err
		}
	}
	for name, c := range someOf(map[string]struct {
		does func(t *testing.T, pool *pgxpool.Pool, r *runner.Runner, key string) error
		jobs int  // number of resulting jobs
		late bool // the ids are taken while the first job is running
	}{
		"a job that starts at once": {submits(rawArgs("plain")), 1, false},
		"a job that is delayed":     {submits(rawArgs("plain"), runner.Delay(time.Millisecond)), 1, false},
		"a job with keys": {func(t *testing.T, _ *pgxpool.Pool, r *runner.Runner, key string) error {
			options := []runner.EnqueueOption{runner.IdempotencyKey(key), runner.Unique(key, runner.WhileActive)}
			made, err := r.Enqueue(t.Context(), rawArgs("plain"), options...)
			if err != nil {
				return err
			}
			s, err := r.Enqueue(t.Context(), rawArgs("plain"), options...)
			if s.ID != made.ID || !s.Duplicate {
				t.Errorf("the keys belong to job %d, want %d", s.ID, made.ID)
			}
			return err
		}, 1, false},
		"a job in the caller's transaction": {inTx(), 1, false},
		"a job with a unique key in the caller's transaction": {func(t *testing.T, pool *pgxpool.Pool, r *runner.Runner, key string) error {
			if err := inTx(runner.Unique(key, runner.WhileActive), runner.IdempotencyKey(key))(t, pool, r, key); err != nil {
				return err
			}
			if n := queryOne[int](t, pool, `select count(*) from trapeze.submissions s join trapeze.jobs j on j.id = s.job_id where j.kind <> 'plain'`); n > 0 {
				t.Error("the key belongs to another pod's job")
			}
			return nil
		}, 1, false},
		"many jobs": {func(t *testing.T, _ *pgxpool.Pool, r *runner.Runner, _ string) error {
			ids, err := r.EnqueueMany(t.Context(), many("plain", 20))
			if err == nil {
				_, err = r.Wait(t.Context(), ids[19]) // the returned ids must refer to existing jobs
			}
			return err
		}, 20, false},
		"many jobs by COPY": {func(t *testing.T, _ *pgxpool.Pool, r *runner.Runner, _ string) error {
			ids, err := r.EnqueueMany(t.Context(), many("plain", 250))
			if err == nil {
				_, err = r.Wait(t.Context(), ids[249])
			}
			return err
		}, 250, false},
		"many jobs in the caller's transaction":         {manyInTx(20), 20, false},
		"many jobs by COPY in the caller's transaction": {manyInTx(250), 250, false},
		"a next step":                 {submits(rawArgs("chains")), 2, true},
		"a next step with writes":     {submits(rawArgs("writes")), 2, true},
		"the children and their join": {submits(rawArgs("fans", "5")), 7, true},
		"the children, by COPY":       {submits(rawArgs("fans", "250")), 252, true},
		"the job of a schedule": {func(t *testing.T, _ *pgxpool.Pool, r *runner.Runner, _ string) error {
			_, err := r.Admin("ann").TriggerSchedule(t.Context(), "s", nil)
			return err
		}, 1, false},
	}, "a job that starts at once", "a job with a unique key in the caller's transaction", "many jobs by COPY in the caller's transaction",
		"a next step with writes", "the children, by COPY", "the job of a schedule") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			o := named("a")
			o.Slots = 50
			var late atomic.Bool
			take := func() {
				if late.Load() {
					occupy(t, pool, 3)
				}
			}
			r := start(t, pool, o, map[string]handler{
				"plain": succeed,
				"chains": func(context.Context, *raw) (*runner.Outcome, error) {
					take()
					return runner.Then(rawArgs("plain")).Result("kept"), nil
				},
				"writes": func(context.Context, *raw) (*runner.Outcome, error) {
					take()
					return runner.Then(rawArgs("plain")).InTx(func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `insert into rows values (1)`)
						return err
					}), nil
				},
				"fans": func(_ context.Context, j *raw) (*runner.Outcome, error) {
					take()
					n := 5
					if strings.TrimSpace(string(j.Args.JSON)) == "250" {
						n = 250
					}
					return runner.FanOut(many("plain", n)...).Join(rawArgs("plain")), nil
				},
			})
			exec(t, pool, `create table rows (n int)`)
			change := every("@yearly")
			kind := "plain"
			change.Kind = &kind
			_, err := r.Admin("ann").SetSchedule(t.Context(), "s", change)
			is.NoErr(err)
			done := func(n int) {
				t.Helper()
				pgtest.Wait(t, "all jobs have ended", func() bool {
					return queryOne[int](t, pool, `select count(*) from trapeze.done`) >= n
				})
			}
			is.NoErr(c.does(t, pool, r, "first"))
			done(c.jobs)
			if late.Store(c.late); !c.late {
				occupy(t, pool, 3)
			}
			is.NoErr(c.does(t, pool, r, "second"))
			done(2 * c.jobs)
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind <> 'theirs'`), 2*c.jobs)
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done where state = 'succeeded'`), 2*c.jobs)
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.parked where kind = 'theirs'`), queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'theirs'`))
			if c.jobs == 2 && name == "a next step with writes" {
				is.Equal(queryOne[int](t, pool, `select count(*) from rows`), 2)
			}
			pgtest.Wait(t, "no id counts as in flight", func() bool {
				known := map[job.Lease]bool{}
				inside.Of(r).Pod.AddKnown(known)
				return len(known) == 0
			})
			checkHistory(t, pool, r)
		})
	}
}

// The reply to an insert is lost, and a failover discards the insert. Another pod's job then has the same id.
func TestReadBackFindsOtherJob(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]runner.EnqueueOption{
		"without keys": nil,
		"with a key":   {runner.IdempotencyKey("k")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			direct := pgtest.Connect(t, url)
			proxy, pool := cable(t, url)
			o := named("a")
			o.LeaseDuration = 6 * time.Second
			r := start(t, pool, o, map[string]handler{"kind-a": succeed})
			waitEnded(t, r, enqueue(t, r, rawArgs("kind-a")))
			// The commit reaches the server, but a failover discards it before the pod reads it back. A second insert stays.
			exec(t, direct, `create sequence inserts`)
			exec(t, direct, `create function take_back() returns trigger language plpgsql as $$
				begin
					if nextval('inserts') > 1 then
						return null;
					end if;
					update trapeze.jobs set kind = 'theirs' where id = new.id;
					delete from trapeze.live where id = new.id;
					delete from trapeze.submissions;
					return null;
				end $$`)
			exec(t, direct, `create constraint trigger take_back after insert on trapeze.jobs deferrable initially deferred
				for each row when (new.args::text like '%args-of-a%') execute function take_back()`)
			var cut <-chan struct{}
			if options == nil {
				cut = proxy.CutReplyOnce(holds("args-of-a"))
			} else {
				cut, _ = proxy.CutReply("insert into trapeze.submissions") // the reply to this transaction's commit
			}
			got := make(chan int64, 1)
			go func() {
				made, err := r.Enqueue(t.Context(), rawArgs("kind-a", `"args-of-a"`), options...)
				if err != nil {
					t.Error(err)
				}
				got <- made.ID
			}()
			<-cut
			id := <-got
			is.Equal(waitEnded(t, r, id).Kind, "kind-a")
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'theirs'`), 1)
		})
	}
}
