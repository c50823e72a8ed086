package runner_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// admissions counts the statements that admit jobs.
type admissions struct{ atomic.Int64 }

func (a *admissions) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "with heirs as materialized") && strings.Contains(q.SQL, "not in (select job_id from guarded)") {
		a.Add(1)
	}
	return ctx
}

func (a *admissions) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A program that runs no jobs, and may exit at any time, admits the next jobs of many subjects with one statement, not with one each.
func TestAdmissionsForManyJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	is.NoErr(err)
	var n admissions
	config.ConnConfig.Tracer = &n
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	defer pool.Close()
	r := newRunner(t, pool, runner.Options{TraceQueries: true}, map[string]handler{"k": succeed})
	admitted := func(do func()) int64 {
		before := n.Load()
		do()
		return n.Load() - before
	}
	const subjects = 20
	one := func() {
		for i := range subjects {
			enqueue(t, r, rawArgs("k"), runner.Subject(fmt.Sprint(i)))
		}
	}
	one()
	is.True(admitted(one) >= subjects) // the tracer sees them
	is.True(admitted(func() {
		_, err := r.EnqueueMany(t.Context(), []job.Args{rawArgs("k"), rawArgs("k"), rawArgs("k"), rawArgs("k"), rawArgs("k")}, runner.Subject("many"))
		is.NoErr(err)
	}) <= 2)
	is.True(admitted(func() {
		done, err := r.Admin("test").CancelMany(t.Context(), job.Filter{Kind: "k"}, false)
		is.NoErr(err)
		is.Equal(done.Done, 2*subjects+5)
	}) <= 2)
}

// After a lost reply, a submission with a subject wakes the pods, because its job may be pending already.
func TestSubjectSubmissionReplyLost(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	pod := start(t, direct, onlyWoken, map[string]handler{"k": succeed})
	submitter := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	cut := proxy.CutReplyOnce(holds("lost-args"))
	id := enqueue(t, submitter, rawArgs("k", `"lost-args"`), runner.Subject("s"))
	<-cut
	is.Equal(waitEnded(t, pod, id).State, job.Succeeded)
}

// A pod that has more free slots than it promotes jobs wakes no other pod. It wakes them for kinds that it does not handle.
func TestPromotionByFreePod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := onlyWoken
	o.Slots = 2
	r := start(t, pool, o, map[string]handler{"k": succeed})
	woken := func() float64 { return metricValue(t, r, "trapeze_notifications_total") }
	before := woken()
	for range 3 {
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"), runner.Delay(50*time.Millisecond))).State, job.Succeeded)
	}
	is.Equal(woken(), before)
	enqueue(t, r, rawArgs("elsewhere"), runner.AllowUnregistered(), runner.Delay(50*time.Millisecond))
	pgtest.Wait(t, "the other pods are woken", func() bool { return woken() > before })
}

// The transaction that deletes a lane moves jobs that were submitted in the meantime. They start without a poll.
func TestJobsMovedByLaneDeletion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, onlyWoken, map[string]handler{"k": succeed})
	var ids []int64
	for _, name := range []string{"old", "other"} {
		_, err := r.Admin("test").SetLane(t.Context(), name, job.LaneChange{})
		is.NoErr(err)
		_, err = r.Admin("test").DrainLane(t.Context(), name, 0)
		is.NoErr(err)
		ids = append(ids, enqueue(t, r, rawArgs("k"), runner.Lane(name)))
	}
	exec(t, pool, `create sequence moves`)
	exec(t, pool, `create function late() returns trigger language plpgsql as $$ begin
		if tg_op = 'UPDATE' then
			if nextval('moves') = 2 then -- the first move is a dry run
				update trapeze.live set lane = 'old' where lane = 'other';
			end if;
		else
			perform pg_sleep(0.5); -- the wake-up for the jobs that were moved before has passed
		end if;
		return old;
	end $$`)
	exec(t, pool, `create trigger late after update of lane on trapeze.live for each row when (old.lane = 'old') execute function late()`)
	exec(t, pool, `create trigger late after delete on trapeze.lanes for each row execute function late()`)
	_, err := r.Admin("test").DeleteLane(t.Context(), "old", "default", false)
	is.NoErr(err)
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
}
