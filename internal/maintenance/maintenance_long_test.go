//go:build long

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// neglected fills a database so that every task has work to do and tasks that work in batches need several of them.
func neglected(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	day := time.Now().UTC().AddDate(0, 0, -20)
	for _, parent := range []string{"done_succeeded", "done_failed", "job_events"} {
		name := parent + day.Format("_20060102")
		pgtest.Exec(t, pool, fmt.Sprintf(`create table trapeze.%s (like trapeze.%s including all)`, name, parent))
		pgtest.Exec(t, pool, fmt.Sprintf(`alter table trapeze.%s attach partition trapeze.%s for values from ('%s 00:00+00') to ('%s 00:00+00')`,
			parent, name, day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
	}
	old := time.Date(day.Year(), day.Month(), day.Day(), 12, 0, 0, 0, time.UTC)
	for _, one := range []struct {
		kind, state string
		first, n    int
	}{{"bulk", "succeeded", 1_000_000, 4500}, {"kept", "succeeded", 1_010_000, 50}, {"bulk", "failed", 1_020_000, 2100}} {
		pgtest.Exec(t, pool, `insert into trapeze.jobs (id, kind, lane, args, pipeline_id, xid)
			select g, $1, 'default', '{}', g, pg_current_xact_id() from generate_series($2::bigint, $3::bigint) g`, one.kind, one.first, one.first+one.n-1)
		pgtest.Exec(t, pool, `insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, finished_at)
			select g, $1, 'ok', 'ok', 1, 1, 1, 1, 0, 10, 'default', $4 from generate_series($2::bigint, $3::bigint) g`, one.state, one.first, one.first+one.n-1, old)
	}
	pgtest.Exec(t, pool, `insert into trapeze.kind_retention values ('kept', 'succeeded', 0)`)
	pgtest.Exec(t, pool, `insert into trapeze.job_events (event_no, event, at) values (1, 'old', $1)`, old)
	pgtest.Exec(t, pool, `insert into trapeze.jobs (id, kind, lane, args, pipeline_id, xid)
		select g, 'k', 'default', '{}', g, pg_current_xact_id() from generate_series(2000001, 2002400) g`)
	pgtest.Exec(t, pool, `insert into trapeze.parked (id, why, run_after, fence, event_no, epoch, priority, lane, kind, subject)
		select g, 'approval', now() - interval '2 days', 0, 1, 1, 10, 'default', 'k', '' from generate_series(2000001, 2001200) g`)
	pgtest.Exec(t, pool, `insert into trapeze.live (id, ready_at, fence, event_no, epoch, priority, state, lane, kind, subject)
		select g, now() - interval '2 days', 0, 1, 1, 10, 'pending', 'default', 'k', '' from generate_series(2001201, 2002399) g`)
	pgtest.Exec(t, pool, `insert into trapeze.live (id, ready_at, fence, event_no, epoch, priority, state, lane, kind, subject)
		values (2002400, now(), 0, 1, 1, 10, 'pending', 'gone', 'k', '')`)
	pgtest.Exec(t, pool, `insert into trapeze.pods (id, name, lease_until, closed_at, closed, swept_at)
		select gen_random_uuid(), 'p', now() - interval '9 days', now() - interval '9 days', 'left', now() - interval '8 days' from generate_series(1, 2500) g`)
	pgtest.Exec(t, pool, `insert into trapeze.submissions (key, job_id, fingerprint, created_at)
		select g, g, '', now() - interval '2 days' from generate_series(1, 5000) g`)
	pgtest.Exec(t, pool, `insert into trapeze.pipelines (id, created_at) select g, now() - interval '2 days' from generate_series(3000001, 3000100) g`)
	pgtest.Exec(t, pool, `insert into trapeze.unique_keys (kind, key, job_id) select 'k', g, g from generate_series(4000001, 4006000) g`)
	pgtest.Exec(t, pool, `insert into trapeze.unique_keys (kind, key, job_id) values ('k', 'in force', 2002400)`)
	pgtest.Exec(t, pool, `insert into trapeze.stats (at, lane, kind, state, pod, jobs, wait, run)
		select date_trunc('hour', now()) - interval '4 hours' + g % 100 * interval '1 minute', 'default', 'k' || g / 100 % 2, 'succeeded', gen_random_uuid(), 2, array[0, 2], '{1,1}'
		from generate_series(1, 10500) g`)
	pgtest.Exec(t, pool, `insert into trapeze.stats (at, lane, kind, state, jobs) select now() - interval '31 days', 'default', 'k', 'failed', 1 from generate_series(1, 2500) g`)
	pgtest.Exec(t, pool, `insert into trapeze.subjects (kind, subject, job_id, state) select 'k', g, g, 'held' from generate_series(5000001, 5000010) g`)
	pgtest.Exec(t, pool, `update trapeze.lanes set granted = 7`)
	// This job is waiting for three branches, one of which is open, and its counts are wrong.
	pgtest.Exec(t, pool, `insert into trapeze.jobs (id, kind, lane, args, pipeline_id, xid) values (2100000, 'k', 'default', '{}', 2100000, pg_current_xact_id())`)
	pgtest.Exec(t, pool, `insert into trapeze.jobs (id, kind, lane, args, pipeline_id, parent_id, group_id, child_no, step, xid)
		select 2100000 + g, 'k', 'default', '{}', 2100000, 2100000, 2100000, g, 1, pg_current_xact_id() from generate_series(1, 3) g`)
	pgtest.Exec(t, pool, `insert into trapeze.parked (id, why, fence, event_no, epoch, priority, lane, kind, subject)
		values (2100000, 'children', 1, 1, 1, 10, 'default', 'k', '')`)
	pgtest.Exec(t, pool, `insert into trapeze.fan_outs (id, fence, branches, open, failed, outcome) values (2100000, 1, 3, 2, 5, 'ok')`)
	pgtest.Exec(t, pool, `insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
		values (2100001, 'succeeded', 'ok', 'ok', 1, 1, 1, 1, 0, 10, 'default'), (2100002, 'failed', 'error', 'failed', 1, 1, 1, 1, 0, 10, 'default')`)
	pgtest.Exec(t, pool, `insert into trapeze.live (id, ready_at, fence, event_no, epoch, priority, state, lane, kind, subject)
		values (2100003, now(), 0, 1, 1, 10, 'pending', 'default', 'k', '')`)
	// This table has not been vacuumed by autovacuum.
	pgtest.Exec(t, pool, `alter table trapeze.cancel_requests set (autovacuum_enabled = off)`)
	pgtest.Exec(t, pool, `insert into trapeze.cancel_requests (pod, job_id, fence, reason) select gen_random_uuid(), g, 1, 'cancelled' from generate_series(1, 12000) g`)
	pgtest.Exec(t, pool, `delete from trapeze.cancel_requests`)
	pgtest.Wait(t, "the dead rows are counted", func() bool {
		return pgtest.QueryOne[int](t, pool, `select n_dead_tup::int from pg_stat_all_tables where relid = 'trapeze.cancel_requests'::regclass`) > 11_000
	})
}

// tidied describes, table by table, the rows that are left after maintenance.
func tidied(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.QueryOne[string](t, pool, `select json_build_object(
		'jobs', (select json_agg(x) from (select kind, count(*), min(id), max(id) from trapeze.jobs group by 1 order by 1) x),
		'done', (select json_agg(x) from (select state, reason, count(*), min(id), max(id) from trapeze.done group by 1, 2 order by 1, 2) x),
		'live', (select json_agg(x) from (select id, lane, event_no from trapeze.live order by 1) x), 'parked', (select count(*) from trapeze.parked),
		'events', (select json_agg(x) from (select event, to_state, count(*) from trapeze.job_event group by 1, 2 order by 1, 2) x),
		'twice', (select count(*) from (select 1 from trapeze.job_event where job is not null group by job, event_no having count(*) > 1) x),
		'pods', (select count(*) from trapeze.pods), 'submissions', (select count(*) from trapeze.submissions),
		'pipelines', (select count(*) from trapeze.pipelines), 'keys', (select json_agg(key order by key) from trapeze.unique_keys),
		'stats', (select json_agg(x) from (select at, kind, pod is null, sum(jobs), sum(wait[2]), sum(run[1]) from trapeze.stats group by 1, 2, 3 order by 1, 2) x),
		'runs', (select count(*) from trapeze.subjects where state = 'held'),
		'fan-outs', (select json_agg(x) from (select id, open, failed, impaired, ended from trapeze.fan_outs order by 1) x), 'granted', (select sum(granted) from trapeze.lanes),
		'days', (select json_agg(c.relname order by 1) from pg_inherits i join pg_class c on c.oid = i.inhrelid
			where c.relname ~ '_[0-9]{8}$' and i.inhparent::regclass::text like 'trapeze.%' and c.relkind = 'r'))::text`)
}

// Maintenance leaves the same rows behind whether one pod runs it, two pods run it concurrently, or a pod's connections are cut between
// batches and another pod continues.
func TestMaintenanceByDifferentPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	want := ""
	for _, c := range []struct {
		name string
		do   func(t *testing.T, pool *pgxpool.Pool, a, b *Maintenance)
	}{
		{"one pod", func(t *testing.T, _ *pgxpool.Pool, a, _ *Maintenance) { is.NoErr(a.RunOnce(t.Context())) }},
		{"two at once", func(t *testing.T, _ *pgxpool.Pool, a, b *Maintenance) {
			var other error
			var both sync.WaitGroup
			both.Go(func() { other = b.RunOnce(t.Context()) })
			err := a.RunOnce(t.Context())
			both.Wait()
			is.NoErr(errors.Join(err, other))
		}},
		{"one that is cut off repeatedly, then another", func(t *testing.T, pool *pgxpool.Pool, a, b *Maintenance) {
			ctx, stop := context.WithCancel(t.Context())
			var cutting sync.WaitGroup
			cuts := 0
			cutting.Go(func() {
				for ctx.Err() == nil {
					cuts += pgtest.QueryOne[int](t, pool, `select count(pg_terminate_backend(pid)) from pg_stat_activity
						where datname = current_database() and application_name = 'trapeze' and state = 'active'`)
				}
			})
			for range 5 {
				_ = a.RunOnce(t.Context()) // most tasks fail
			}
			stop()
			cutting.Wait()
			t.Logf("%d connections were cut", cuts)
			is.True(cuts > 10)
			is.NoErr(b.RunOnce(t.Context()))
		}},
		{"two taking turns, each losing the lead between two batches of each task", func(t *testing.T, pool *pgxpool.Pool, a, b *Maintenance) {
			is := is.New(t)
			cut := map[string]int{}
			for batch := 2; batch <= 5; batch++ {
				for task, err := range leadAndLoseIt(t.Context(), pool, a, batch) {
					if errors.Is(err, errLeadLost) {
						cut[task]++
						continue
					}
					is.NoErr(err)
				}
				a, b = b, a
			}
			t.Log("cut between two batches:", cut)
			for _, task := range []string{"retention", "approval", "deadline", "pods", "submissions", "stats", "keys"} {
				is.True(cut[task] > 0) // each task with several batches was interrupted
			}
		}},
		{"one whose context is cancelled, then another", func(t *testing.T, _ *pgxpool.Pool, a, b *Maintenance) {
			for _, after := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
				ctx, cancel := context.WithTimeout(t.Context(), after)
				_ = a.RunOnce(ctx)
				cancel()
			}
			is.NoErr(b.RunOnce(t.Context()))
		}},
	} {
		pool := pgtest.Pool(t)
		neglected(t, pool)
		a, b := newOne(t, pool, "a"), newOne(t, pool, "b")
		c.do(t, pool, a, b)
		is.NoErr(b.RunOnce(t.Context())) // finish work left to another run, such as a table that a reader had locked
		pgtest.Wait(t, "the vacuum is counted", func() bool {
			return pgtest.QueryOne[int](t, pool, `select vacuum_count::int from pg_stat_all_tables where relid = 'trapeze.cancel_requests'::regclass`) > 0
		})
		got := tidied(t, pool)
		if want == "" {
			want = got
			t.Log(want)
			is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'bulk'`), 0)
			is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'kept'`), 50)
			is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.done where reason = 'expired'`), 1200)
			is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.done where reason = 'deadline'`), 1199)
			is.Equal(pgtest.QueryOne[string](t, pool, `select concat_ws(' ', sum(jobs), count(distinct at), count(pod), min(at) > now() - interval '1 day') from trapeze.stats`), "21000 2 0 t")
			is.Equal(pgtest.QueryOne[string](t, pool, `select open || ' ' || failed from trapeze.fan_outs where id = 2100000`), "1 1")
			is.Equal(pgtest.QueryOne[int](t, pool, `select (select count(*) from trapeze.submissions) + (select count(*) from trapeze.pods) + (select count(*) from trapeze.pipelines)`), 0)
		}
		if got != want {
			t.Errorf("%s left\n%s\nwant\n%s", c.name, got, want)
		}
	}
}
