//go:build long

package e2e

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestExamplePipelineFromCommandLine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.EmptyURL(t)}
	serve(t, db.url, nil)
	answer := decoded[struct{ Job job.JobRow }](t, db.ok("enqueue", "csv_ingest", "--args", `{"year":2024}`, "--subject", "travel/2024", "--wait", "--json"))
	is.Equal(answer.Job.Kind, "unit_totals")
	result := decoded[map[string]float64](t, string(answer.Job.Result))
	is.Equal(result["flights"], 20000.0)
	is.Equal(result["units"], 220.0)
}
