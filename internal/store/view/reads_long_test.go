//go:build long

package view

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

// readers lists the statements that operators and pods use to read jobs and pipelines.
var readers = map[string]string{
	"job": jobSQL, "jobs": jobsSQL, "own_jobs": ownJobsSQL, "open_jobs": openJobsSQL, "ended_jobs": endedJobsSQL, "jobs_of": jobsOfSQL,
	"jobs_of_pipeline": jobsOfPipelineSQL,
	"pipeline":         pipelineSQL, "pipelines": pipelinesSQL, "own_pipelines": ownPipelinesSQL, "rare_pipelines": rarePipelinesSQL,
	"spine": spineSQL, "branch_jobs": branchJobsSQL, "branch_page": branchPageSQL, "branch_states": branchStatesSQL,
}

func TestReadPlansOnStaleStatistics(t *testing.T) {
	t.Parallel()
	const open = 20_000
	s := plantest.Open(t, store.New)
	plantest.SeedEnded(t, s.Pool(), 400, 20)
	plantest.FillUnanalyzed(t, s.Pool(), open)
	conn := plantest.Pinned(t, s.Pool())
	for name, sql := range readers {
		plan := plantest.Explain(t, conn, name, sql, "costs off")
		for _, found := range plantest.Wide.FindAllString(plan, -1) {
			t.Errorf("%s scans a whole table for each job: %s:\n%s", name, found, plan)
		}
	}
	for name, args := range map[string][]string{
		"job":              {"'400'"},
		"jobs_of":          {"'{1,2,3,400}'"},
		"jobs":             {"null", "null", "null", "null", "null", "null", "null", "null", "null", "'50'", "'false'", "null", "null", "null", "null", "'epoch'", "'0'"},
		"own_jobs":         {"null", "null", "null", "null", "null", "null", "null", "null", "null", "'50'", "'false'", "null", "null", "null", "null", "'epoch'", "'0'", "'ana'"},
		"open_jobs":        {"null", "null", "null", "null", "null", "null", "null", "null", "null", "'50'", "'false'", "null", "null", "null", "'{1,2,1000001,1000002,2000001}'", "null"},
		"jobs_of_pipeline": {"null", "null", "null", "null", "'400'", "null", "null", "null", "null", "'50'", "'true'", "null", "null", "null", "null"},
		"pipelines":        {"null", "null", "null", "null", "null", "'50'"},
	} {
		found := plantest.Reads(t, conn, name+"_run", readers[name], args...)
		t.Logf("%-10s %+v", name, found)
		if found.Rows > 1000 || found.Buffers > 2000 {
			t.Errorf("%s touches %+v with %d open jobs", name, found, open)
		}
	}
}
