package view

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestRareEndListReads(t *testing.T) {
	t.Parallel()
	look := func(n int) map[string]plantest.Touched {
		s := plantest.Open(t, store.New)
		plantest.SeedEnded(t, s.Pool(), n, n/20) // twenty failed jobs in each history
		conn := plantest.Pinned(t, s.Pool())
		found := map[string]plantest.Touched{}
		for name, args := range map[string][]string{
			"rare_count":     plantest.Literals("{failed}", "-infinity", "10001"),
			"ended_jobs":     append(append(plantest.Literals("{failed}"), "null", "null", "null", "null", "null", "null", "null", "null"), "'50'", "'false'", "null", "null", "null", "null"),
			"rare_pipelines": append(plantest.Literals("{failed}"), "null", "null", "null", "null", "'50'"),
			"failures":       {"null", "null", "'10000'"},
		} {
			found[name] = plantest.Reads(t, conn, name, hot[name], args...)
		}
		return found
	}
	plantest.LongAsShort(t, look(400), look(20_000))
}

func TestCurrentRunWithoutHistory(t *testing.T) {
	t.Parallel()
	look := func(n int) map[string]plantest.Touched {
		s := plantest.Open(t, store.New)
		pgtest.Exec(t, s.Pool(), `insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id)
			select g, 'k', 'default', case g when 1 then 's' when 2 then 'other' else '' end, '{}', g from generate_series(1, $1::int) g`, n)
		pgtest.Exec(t, s.Pool(), `insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
			select g, 'succeeded', 'ok', 'ok', 1, 3, 1, 1, 0, 10, 'default' from generate_series(1, 2) g`)
		pgtest.Exec(t, s.Pool(), `insert into trapeze.subjects (kind, subject, job_id, state) values ('k', 's', 1, 'free'), ('k', 'other', 2, 'free')`)
		pgtest.Exec(t, s.Pool(), `insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
			select g, now(), 1, 10, 'pending', 'default', 'k', '' from generate_series(3, $1::int) g`, n) // all newer than the two finished jobs
		for _, table := range []string{"jobs", "live", "subjects"} {
			pgtest.Exec(t, s.Pool(), `vacuum analyze trapeze.`+table)
		}
		conn := plantest.Pinned(t, s.Pool())
		args := func(kind, subject string) []string {
			return []string{"null", kind, "null", subject, "null", "null", "null", "null", "null", "1", "true", "null", "null", "null", "null"}
		}
		return map[string]plantest.Touched{
			"current_run":  plantest.Reads(t, conn, "current_run", currentRunSQL, args("'k'", "'s'")...),
			"current_jobs": plantest.Reads(t, conn, "current_jobs", currentJobsSQL, args("null", "null")...),
		}
	}
	plantest.LongAsShort(t, look(400), look(20_000))
}

func TestPipelineJobReads(t *testing.T) {
	t.Parallel()
	look := func(n int) map[string]plantest.Touched {
		s := plantest.Open(t, store.New)
		plantest.SeedEnded(t, s.Pool(), n, 20)
		conn := plantest.Pinned(t, s.Pool())
		return map[string]plantest.Touched{"jobs_of_pipeline": plantest.Reads(t, conn, "jobs_of_pipeline", jobsOfPipelineSQL,
			"null", "null", "null", "null", "'400'", "null", "null", "null", "null", "'50'", "'true'", "null", "null", "null", "null")}
	}
	plantest.LongAsShort(t, look(500), look(20_000))
}

func TestWalkPartReads(t *testing.T) {
	t.Parallel()
	is, s := is.New(t), plantest.Open(t, store.New)
	plantest.SeedEnded(t, s.Pool(), 20_000, 20)
	pgtest.Exec(t, s.Pool(), `vacuum analyze trapeze.jobs`)
	conn := plantest.Pinned(t, s.Pool())
	at, err := store.Rows(t.Context(), s, pgx.RowToStructByPos[walkEnd], lookedSQL, nil, nil, 0, 999)
	is.NoErr(err)
	found := plantest.Reads(t, conn, "jobs", jobsSQL, "null", "'none'", "null", "null", "null", "null", "null",
		"null", "null", "'50'", "'true'", "null", "null", "null", "null", "'"+at[0].At.Format(time.RFC3339Nano)+"'", "'"+strconv.FormatInt(at[0].ID, 10)+"'")
	is.Equal(found.Rows, 1000)
	ends := plantest.Reads(t, conn, "looked", lookedSQL, "null", "null", "null", "'999'")
	is.Equal(ends.Rows, 1000)
	is.True(ends.Buffers < 50) // reads only index pages
}

// One statement may finish thousands of jobs and store a single shared event for them. Reading the history of one of these jobs must read
// only that event's row, found through an index.
func TestJobHistoryReads(t *testing.T) {
	t.Parallel()
	s := plantest.Open(t, store.New)
	pgtest.Exec(t, s.Pool(), `insert into trapeze.jobs (id, kind, lane, args, pipeline_id) values (1, 'k', 'default', '{}', 1)`)
	plan := plantest.Explain(t, plantest.Pinned(t, s.Pool()), "job_events", jobEventsSQL, "analyze, costs off, timing off", "1", "0", "100")
	lines := strings.Split(plan, "\n")
	for _, l := range lines {
		if strings.Contains(l, "Seq Scan") && !strings.Contains(l, "never executed") {
			t.Errorf("%s\nin\n%s", l, strings.Join(lines, "\n"))
		}
	}
}

func TestApplicationTriggersInDoctor(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	s, err := store.New(t.Context(), pool, store.Options{})
	is.NoErr(err)
	t.Cleanup(s.Close)
	_, err = pool.Exec(t.Context(), `create function public.mine() returns trigger language plpgsql as 'begin return null; end';
		create trigger mine after insert on trapeze.done for each row execute function public.mine();
		alter table trapeze.schedules disable trigger schedule_is_planned_anew`)
	is.NoErr(err)
	weak, err := WeakTriggers(t.Context(), s)
	is.NoErr(err)
	is.Equal(weak, []Trigger{{Name: "schedule_is_planned_anew", Table: "schedules"}})
}
