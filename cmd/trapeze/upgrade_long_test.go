//go:build long

package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// longestHold limits how long migrations may keep a table locked against readers and writers.
const longestHold = 5 * time.Second

// millionSQL copies a finished job to create 900,000 finished jobs, each with an event, and 100,000 jobs that are due tomorrow.
const millionSQL = `
with model as materialized (select id from trapeze.done limit 1), ids as materialized (select g::bigint as id from generate_series(2000001, 3000000) g), jobs as (
	insert into trapeze.jobs (id, kind, lane, args, pipeline_id, submitter, xid)
	select i.id, j.kind, j.lane, '{"year":2025,"file":"flights.csv"}', i.id, j.submitter, j.xid
	from ids i cross join model m join trapeze.jobs j on j.id = m.id
), ended as (
	insert into trapeze.done (id, state, outcome, reason, result, fence, pod, event_no, epoch, attempt, crashes, priority, lane, started_at, xid, claim_xid)
	select i.id, d.state, d.outcome, d.reason, '{"rows":12}', d.fence, d.pod, d.event_no, d.epoch, d.attempt, d.crashes, d.priority, d.lane, d.started_at, d.xid, d.claim_xid
	from ids i cross join model m join trapeze.done d on d.id = m.id where i.id <= 2900000
), waits as (
	insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
	select i.id, 'scheduled', now() + interval '1 day', 1, 10, 'default', 'demo.noop', '' from ids i where i.id > 2900000
)
insert into trapeze.job_events (job, event_no, from_state, to_state, event) select id, 1, '', 'pending', 'job.enqueued' from ids`

// locks records how long each table is locked exclusively, and the longest wait for a lock.
type locks struct {
	first, last map[string]time.Time
	waited, gap time.Duration // gap is the longest interval between two samples
}

func (l *locks) watch(ctx context.Context, pool *pgxpool.Pool) error {
	const sql = `select coalesce(array_agg(distinct c.relname::text) filter (where k.granted and k.mode = 'AccessExclusiveLock' and c.relkind in ('r', 'p')), '{}'),
		coalesce(extract(epoch from max(clock_timestamp() - k.waitstart) filter (where not k.granted)), 0)::float8
		from pg_locks k left join pg_class c on c.oid = k.relation and c.relnamespace = 'trapeze'::regnamespace`
	for before := time.Now(); ctx.Err() == nil; before = time.Now() {
		var names []string
		var waited float64
		if err := pool.QueryRow(ctx, sql).Scan(&names, &waited); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		l.gap = max(l.gap, time.Since(before))
		l.waited = max(l.waited, time.Duration(waited*float64(time.Second)))
		for _, name := range names {
			if l.first[name].IsZero() {
				l.first[name] = time.Now()
			}
			l.last[name] = time.Now()
		}
	}
	return nil
}

// TestAMillionJobsAreMigratedBesideThePreviousVersion migrates a database of the previous version that contains a million jobs, while a pod
// of that version runs jobs. A pod of the current version joins afterwards. docs/upgrading.md publishes the measured lock times.
func TestAMillionJobsAreMigratedBesideThePreviousVersion(t *testing.T) {
	is := is.New(t)
	previous := previousProgram(t)
	url := pgtest.EmptyURL(t)
	migrate := exec.CommandContext(t.Context(), previous, "migrate")
	migrate.Env = environment("DATABASE_URL=" + url)
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("migrate with the previous version: %v %s", err, out)
	}
	pool := pgtest.Connect(t, url)
	count := func(sql string) (n int) {
		t.Helper()
		is.NoErr(pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	old := serveWith(t, previous, url, nil)
	submit := func(p *pod) (time.Duration, error) {
		begin := time.Now()
		response, err := http.Post(p.HTTP+"/jobs", "application/json", strings.NewReader(`{"kind":"demo.noop"}`))
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusAccepted {
			return 0, fmt.Errorf("submit: status %d", response.StatusCode)
		}
		return time.Since(begin), nil
	}
	_, err := submit(old)
	is.NoErr(err)
	pgtest.Wait(t, "a job has ended", func() bool { return count(`select count(*) from trapeze.done`) == 1 })
	_, err = pool.Exec(t.Context(), millionSQL)
	is.NoErr(err)
	_, err = pool.Exec(t.Context(), `analyze`)
	is.NoErr(err)

	// A pod of the previous version continuously submits and runs jobs.
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	var took []time.Duration
	began := make(chan struct{})
	busy.Go(func() {
		for ctx.Err() == nil {
			d, err := submit(old)
			if err != nil {
				t.Error(err)
				return
			}
			if took = append(took, d); len(took) == 50 {
				close(began)
			}
		}
	})
	held := locks{first: map[string]time.Time{}, last: map[string]time.Time{}}
	watching, seen := context.WithCancel(t.Context())
	busy.Go(func() {
		if err := held.watch(watching, pool); err != nil {
			t.Error(err)
		}
	})
	<-began
	begin := time.Now()
	database{t, url}.ok("migrate", "up")
	total := time.Since(begin)
	seen()
	young := serve(t, url, nil)
	for range 50 {
		_, err := submit(young)
		is.NoErr(err)
	}
	stop()
	busy.Wait()
	pgtest.WaitFor(t, time.Minute, "every job that was submitted has ended", func() bool {
		return count(`select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 100_000
	})
	is.Equal(count(`select count(*) from trapeze.done where state <> 'succeeded'`), 0)
	is.Equal(count(`select count(*) from trapeze.done`), 900_000+1+len(took)+50)

	var longest time.Duration
	for name, first := range held.first {
		longest = max(longest, held.last[name].Sub(first)+2*held.gap)
	}
	slices.Sort(took)
	t.Logf("migrate, with the start of its process: %s; %d tables locked, the longest for at most %s; longest wait for a lock %s", total.Round(time.Millisecond), len(held.first), longest.Round(time.Millisecond), held.waited.Round(time.Millisecond))
	t.Logf("%d submissions to the previous version: median %s, longest %s", len(took), took[len(took)/2].Round(time.Microsecond), took[len(took)-1].Round(time.Millisecond))
	is.True(len(held.first) > 0) // sampling was frequent enough to see locks
	is.True(longest < longestHold)
	is.True(held.waited < longestHold)

	begin = time.Now()
	database{t, url}.ok("erase", "--subject", "of no job")
	t.Logf("an erasure that reads all jobs: %s", time.Since(begin).Round(time.Millisecond))
}
