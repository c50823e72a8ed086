package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestFailuresAndRetryCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, []string{"TRAPEZE_MAX_ATTEMPTS=1"})
	var ids []string
	for i := range 3 {
		ids = append(ids, db.enqueue("demo.fail", "--args", fmt.Sprintf(`{"message":"row %d is bad"}`, i)))
	}
	other := db.enqueue("demo.fail", "--args", `{"message":"no connection"}`)
	for _, id := range append(ids, other) {
		db.inState(id, job.Failed)
	}
	lines := strings.Split(strings.TrimSpace(db.ok("failures")), "\n")
	is.Equal(len(lines), 3)
	is.Equal(strings.Fields(lines[0]), strings.Fields("ID KIND JOBS RETRYING FIRST LAST NEWEST ERROR"))
	first := strings.Fields(lines[1])
	is.Equal(first[1:4], []string{"demo.fail", "3", "0"})
	is.True(strings.HasSuffix(lines[1], "row # is bad"))
	group := decoded[failures.Group](t, strings.Split(db.ok("failures", "--json", "--kind", "demo.fail"), "\n")[0])
	is.Equal([]any{group.ID, group.Jobs}, []any{first[0], 3})
	is.True(strings.Contains(db.ok("failures", group.ID), "row 1 is bad"))
	is.Equal(db.run("failures", group.ID, "--kind", "demo.noop").code, 2) // all jobs of a group have the same kind
	is.Equal(db.run("failures", "0123456789abcdef").code, 1)
	is.Equal(db.run("failures", "--limit", "0").code, 2)

	is.True(strings.HasPrefix(db.ok("retry", "--failures", group.ID, "--dry-run"), "3 jobs would be retried: "))
	is.Equal(db.ok("retry", "--failures", group.ID, "--since", "1h"), "3 jobs retried\n")
	for _, id := range ids {
		db.until(id, "runs again", func(j job.JobRow) bool { return j.Epoch == 2 })
	}
	is.Equal(db.job(other).Epoch, 1)
	is.Equal(db.run("retry", "--failures", group.ID, "--kind", "demo.fail").code, 2) // --failures cannot be combined with other filters

	lines = strings.Split(strings.TrimSpace(db.ok("kinds", "--order", "kind")), "\n")
	is.True(strings.HasPrefix(lines[0], "KIND "))
	is.True(strings.Contains(db.ok("kinds"), "1 attempt, 3 crashes"))
	is.Equal(db.run("kinds", "--order", "size").code, 2)
}
