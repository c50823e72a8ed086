package store

import (
	"regexp"
	"testing"
	"time"

	"github.com/matryer/is"
)

// readers are the statements that people and pods read jobs and pipelines by.
var readers = map[string]string{
	"job": jobSQL, "jobs": jobsSQL, "own_jobs": ownJobsSQL, "open_jobs": openJobsSQL, "ended_jobs": endedJobsSQL, "jobs_of": jobsOfSQL,
	"jobs_of_pipeline": jobsOfPipelineSQL,
	"pipeline":         pipelineSQL, "pipelines": pipelinesSQL, "own_pipelines": ownPipelinesSQL, "rare_pipelines": rarePipelinesSQL,
	"spine": spineSQL, "branch_jobs": branchJobsSQL, "branch_states": branchStatesSQL,
}

// emptied analyzes live and parked while they hold nothing, and fills them then, which no plan learns of.
func (w *world) emptied(n int) {
	w.t.Helper()
	w.plans.slow = time.Hour // a busy machine is no reason to analyze them
	fill := func(n int) {
		w.exec(`insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject, fence)
			select g, now(), 1, 10, 'pending', 'default', 'k', 's' || g % 100, 1 from generate_series(1000001, 1000000 + $1::int) g`, n)
		w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
			select g, 'retry', now(), 1, 10, 'default', 'k', '' from generate_series(2000001, 2000000 + $1::int) g`, n)
	}
	fill(n)
	w.exec(`delete from trapeze.live`)
	w.exec(`delete from trapeze.parked`)
	for _, table := range []string{"live", "parked", "job_progress", "fan_outs", "current_runs"} {
		w.exec(`alter table trapeze.` + table + ` set (autovacuum_enabled = false)`)
		w.exec(`vacuum (analyze, truncate false) trapeze.` + table)
	}
	fill(n)
	w.t.Cleanup(func() { w.exec(`truncate trapeze.live, trapeze.parked`) }) // they have no jobs
}

// wide finds scans of live and parked that no index begins at the job that is asked for.
var wide = regexp.MustCompile(`Scan( Backward)? (using (live_for_\w+|\w+) )?on (live|parked)\b.*\n +(Filter|->|SubPlan).*|using live_for_\w+ on live\b.*\n +Index Cond: \(id = .*`)

func TestJobsAreReadByTheirPlacesThoughTheseWereEmptyWhenAnalyzed(t *testing.T) {
	t.Parallel()
	const open = 20_000
	w := newWorld(t)
	w.seedEnded(400, 20)
	w.emptied(open)
	conn := pinned(t, w.pool.Config().ConnString())
	for name, sql := range readers {
		plan := explain(t, conn, name, sql, "costs off")
		for _, found := range wide.FindAllString(plan, -1) {
			t.Errorf("%s looks through all of a table for each job: %s:\n%s", name, found, plan)
		}
	}
	for name, args := range map[string][]string{
		"job":              {"'400'"},
		"jobs_of":          {"'{1,2,3,400}'"},
		"jobs":             {"null", "null", "null", "null", "null", "null", "null", "null", "null", "'50'", "'false'", "null", "null", "null", "null", "'0'"},
		"own_jobs":         {"null", "null", "null", "null", "null", "null", "null", "null", "null", "'50'", "'false'", "null", "null", "null", "null", "'0'", "'ana'"},
		"open_jobs":        {"null", "null", "null", "null", "null", "null", "null", "null", "null", "'50'", "'false'", "null", "null", "null", "'{1,2,1000001,1000002,2000001}'", "null"},
		"jobs_of_pipeline": {"null", "null", "null", "null", "'400'", "null", "null", "null", "null", "'50'", "'true'", "null", "null", "null", "null"},
		"pipelines":        {"null", "null", "null", "null", "null", "'50'"},
	} {
		found := read(t, explain(t, conn, name+"_run", readers[name], "analyze, buffers, format json", args...))
		t.Logf("%-10s %+v", name, found)
		if found.Rows > 1000 || found.Buffers > 2000 {
			t.Errorf("%s touches %+v beside %d open jobs", name, found, open)
		}
	}
}

func TestASlowStatementHasTablesAnalyzedThatThePlannerTakesForEmpty(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t)
	w.emptied(20_000)
	through := func() (found []string) {
		conn := pinned(t, w.pool.Config().ConnString())
		for _, name := range []string{"claim", "claim_subjects", "finish"} {
			if wide.MatchString(explain(t, conn, name, hot[name], "costs off")) {
				found = append(found, name)
			}
		}
		return found
	}
	empty := func() (n int) {
		is.NoErr(w.pool.QueryRow(w.ctx(), `select count(*) from pg_class where relname in ('live', 'parked') and relnamespace = to_regnamespace($1)
			and reltuples < 10000`, w.schema).Scan(&n))
		return n
	}
	is.Equal(empty(), 2) // so the planner believes
	t.Logf("plans that read all of a table for each job: %v", through())

	w.plans.slow, w.plans.at = 0, time.Time{}
	_, err := w.NewIDs(w.ctx(), 1) // a slow statement, whichever
	is.NoErr(err)
	is.Equal(empty(), 0)
	is.Equal(through(), nil) // no such plan is left
}
