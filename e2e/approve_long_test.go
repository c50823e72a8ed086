//go:build long

package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestApprovalTimeoutWithSeveralProcesses(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	id := db.enqueue("demo.noop", "--needs-approval")
	for range 2 {
		serve(t, db.url, []string{"TRAPEZE_APPROVAL_TTL=1s"})
	}
	db.inState(id, job.Cancelled)
	is.Equal(string(*db.job(id).Reason), "expired")
	is.Equal(db.run("approve", id).code, 1)
	is.Equal(strings.Count(db.ok("events", "--job", id, "--json"), `"job.cancelled"`), 1) // only one of the processes cancels the job
}
