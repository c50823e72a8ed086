//go:build long

package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestJobsAreSteeredByCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, nil)
	ended := func(id string, want job.State) job.JobRow {
		t.Helper()
		db.inState(id, want)
		return db.job(id)
	}

	id := db.enqueue("demo.fail", "--args", `{"message":"broken"}`)
	ended(id, job.Failed)
	is.Equal(strings.TrimSpace(db.ok("retry", id, "--args", `{"message":"broken again"}`)), "job "+id+" is pending again")
	db.until(id, "has failed again", func(j job.JobRow) bool { return j.State == job.Failed && j.Epoch == 2 })
	is.True(strings.Contains(*db.job(id).Error, "broken again"))
	is.Equal(db.run("retry", "999999").code, 1)

	asks := db.enqueue("demo.noop", "--needs-approval")
	is.Equal(db.job(asks).State, job.AwaitingApproval)
	is.Equal(strings.TrimSpace(db.ok("nice", asks, "77")), "job "+asks+" has priority 77")
	db.ok("nice", "--chain", asks, "--", "-20")
	is.Equal(db.job(asks).Priority, -20)
	is.Equal(db.run("nice", asks, "101").code, 2)
	is.Equal(db.run("retry", asks).code, 1) // the job has not failed
	db.ok("approve", asks)
	ended(asks, job.Succeeded)
	is.Equal(db.run("nice", asks, "1").code, 1)

	for range 3 {
		db.enqueue("demo.noop", "--delay", "1h", "--subject", "s")
	}
	is.True(strings.HasPrefix(db.ok("kill", "--subject", "s", "--dry-run"), "3 jobs would be cancelled: "))
	is.Equal(strings.TrimSpace(db.ok("kill", "--subject", "s")), "3 jobs cancelled")
	is.Equal(strings.TrimSpace(db.ok("kill", "--subject", "s", "-n")), "no job would be cancelled")
	is.Equal(strings.TrimSpace(db.ok("retry", "--subject", "s", "--state", "cancelled")), "3 jobs retried")
	is.Equal(decoded[map[string]any](t, db.ok("retry", "--kind", "demo.fail", "--dry-run", "--json"))["matched"], 1.0)
	panicked := db.enqueue("demo.panic")
	is.Equal(*ended(panicked, job.Failed).ErrorClass, job.ClassPanic)
	for _, filter := range [][]string{{"--error-class", "panic"}, {"--job-reason", "error", "--kind", "demo.panic"}, {"--error-class", "panic", "--error-code", ""}} {
		is.Equal(decoded[map[string]any](t, db.ok(append([]string{"retry", "--dry-run", "--json"}, filter...)...))["sample"], []any{panicked})
		is.Equal(decoded[job.JobRow](t, db.ok(append([]string{"jobs", "--json"}, filter...)...)).ID, db.job(panicked).ID)
	}
	is.True(strings.Contains(db.ok("job", panicked), "error class    panic"))
	is.Equal(db.ok("jobs", "--json", "--error-code", "23505"), "")
	for _, wrong := range [][]string{{"jobs", "--error-class", "happy"}, {"jobs", "--job-reason", "happy"}, {"jobs", "--error-code", "a b"}, {"kill"}, {"kill", id, "--kind", "x"}, {"retry"}, {"retry", "--kind", "x", "--args", "{}"}, {"kill", "--state", "happy"}, {"retry", "--kind", "x", "--state", "running"}} {
		is.Equal(db.run(wrong...).code, 2)
	}
}
