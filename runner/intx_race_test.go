package runner_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A cancel command arrives between two statements of the transaction that ends a job. Either it cancels the job and nothing is written, or
// it comes too late.
func TestCancelBetweenInTxStatements(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint, no int)`)
	var r *runner.Runner
	cancelled := make(chan error, 1)
	// cancel sends the command at the given point. It waits until the command has finished or is waiting for the job's row.
	cancel := func(ctx context.Context, j *raw, at string) {
		if j.Args.Name != at {
			return
		}
		before := queryOne[int](t, pool, waitForLocks)
		go func() {
			_, err := r.Admin("ann").Cancel(context.WithoutCancel(ctx), j.ID())
			cancelled <- err
		}()
		pgtest.Wait(t, "the cancellation has finished or is waiting", func() bool {
			return len(cancelled) == 1 || queryOne[int](t, pool, waitForLocks) > before
		})
	}
	work := func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		cancel(ctx, j, "before the transaction")
		return runner.Then(rawArgs("next")).InTx(func(ctx context.Context, tx pgx.Tx) error {
			cancel(ctx, j, "before the first")
			_, err := tx.Exec(ctx, `insert into mine values ($1, 1)`, j.ID())
			cancel(ctx, j, "between two")
			return err
		}).InTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into mine values ($1, 2)`, j.ID())
			cancel(ctx, j, "before the end")
			return err
		}), nil
	}
	handlers := map[string]handler{"next": succeed}
	moments := map[string]job.State{"before the transaction": job.Cancelled, "before the first": "", "between two": "", "before the end": ""}
	for at := range moments {
		handlers[kindOf(at)] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			j.Args.Name = at
			return work(ctx, j)
		}
	}
	r = start(t, pool, runner.Options{}, handlers)
	for at, want := range moments {
		is := is.New(t)
		id := enqueue(t, r, rawArgs(kindOf(at)))
		state, err := waitEnded(t, r, id).State, <-cancelled
		if want != "" {
			is.Equal(state, want)
		}
		rows, next := queryOne[int](t, pool, `select count(*) from mine where job = $1`, id), queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id = $1`, id)
		t.Logf("%s: %s, the command: %v", at, state, err)
		if state == job.Succeeded {
			is.True(errors.Is(err, job.ErrAlreadyTerminal)) // the cancel command came too late and reports that
			is.Equal(rows, 2)
			is.Equal(next, 1)
		} else {
			is.Equal(state, job.Cancelled)
			is.NoErr(err)
			is.Equal(rows, 0)
			is.Equal(next, 0)
		}
	}
	quiet(t, pool) // the last next step may still be running
	checkHistory(t, pool, r)
}

// waitForLocks counts the sessions in this database that are waiting for a lock.
const waitForLocks = `select count(*)::int from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`

// kindOf turns a point in the transaction, such as "between two", into a kind name.
func kindOf(at string) string {
	b := []byte(at)
	for i, c := range b {
		if c == ' ' {
			b[i] = '-'
		}
	}
	return string(b)
}

// The connection breaks while the first COMMIT is hanging on the server. That COMMIT then succeeds or is rolled back while the pod is
// retrying. Exactly one of the two transactions must take effect.
func TestLateCommitAndRetry(t *testing.T) {
	t.Parallel()
	const insert = `insert into mine values ($1, nextval('tries'))`
	statement := func(j *raw) *pgx.Batch {
		b := &pgx.Batch{}
		b.Queue(insert, j.ID())
		return b
	}
	exec1 := func(ctx context.Context, tx pgx.Tx, j *raw) error {
		_, err := tx.Exec(ctx, insert, j.ID())
		return err
	}
	handlers := map[string]handler{
		"InTx": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("next")).InTx(func(ctx context.Context, tx pgx.Tx) error { return exec1(ctx, tx, j) }), nil
		},
		"Write": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("next")).WriteBatch(statement(j)), nil
		},
		"Job.Tx": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("next")), j.Tx(ctx, func(tx pgx.Tx) error { return exec1(ctx, tx, j) }, 1)
		},
		"Job.Write": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Then(rawArgs("next")), j.Write(ctx, 1, statement(j))
		},
	}
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, cut := cable(t, url)
	// The commit must hang without waiting for a lock, because a group commit has a lock timeout. An advisory lock shows that the commit is
	// hanging.
	exec(t, direct, `create table mine (job bigint, try int); create sequence tries; create table closed ();
		create function hangs() returns trigger language plpgsql as $$ begin
			perform pg_advisory_xact_lock_shared(42);
			while exists (select from closed) loop perform pg_sleep(0.01); end loop;
			return null;
		end $$;
		create constraint trigger hangs after insert on mine deferrable initially deferred for each row execute function hangs()`)
	cases := map[string]struct {
		late  string
		short []string // the handlers that also run in make test
	}{
		"commits": {`select 1`, []string{"InTx", "Job.Write"}},
		"rolled back": {`select pg_terminate_backend(pid) from pg_locks l join pg_database d on d.oid = l.database where datname = current_database() and objid = 42`,
			[]string{"Write", "Job.Tx"}},
	}
	kinds := map[string]handler{"next": succeed}
	for name := range cases {
		for how, work := range handlers {
			kinds[kindOf(how+" "+name)] = work // a kind whose statement waited for a lock is committed alone for a minute
		}
	}
	r := start(t, cut, runner.Options{}, kinds)
	for name, c := range cases {
		for how := range someOf(handlers, c.short...) {
			t.Run(how+" "+name, func(t *testing.T) {
				is := is.New(t)
				exec(t, direct, `insert into closed default values; alter sequence tries restart`)
				id := enqueue(t, r, rawArgs(kindOf(how+" "+name)))
				hangs := `select count(*)::int from pg_locks l join pg_database d on d.oid = l.database where datname = current_database() and locktype = 'advisory' and objid = 42`
				pgtest.Wait(t, "the commit hangs", func() bool { return queryOne[int](t, direct, hangs) == 1 })
				proxy.Reset()
				pgtest.Wait(t, "the retry is waiting behind it", func() bool { return queryOne[int](t, direct, waitForLocks) == 1 })
				is.Equal(queryOne[int](t, direct, hangs), 1) // the first commit is still in progress
				exec(t, direct, c.late)
				exec(t, direct, `delete from closed`)
				is.Equal(waitEnded(t, r, id).State, job.Succeeded)
				is.Equal(queryOne[int](t, direct, `select count(*) from mine where job = $1`, id), 1)
				want := 1
				if name == "rolled back" {
					want = 2
				}
				is.Equal(queryOne[int](t, direct, `select try from mine where job = $1`, id), want)
				is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where parent_id = $1`, id), 1)
				quiet(t, direct) // the next step may still be running
			})
		}
	}
	checkHistory(t, direct, r)
}
