package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestEraseCommandWithUnfinishedJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	is.Equal(db.run("erase").code, cli.CodeUsage)
	id := db.enqueue("some.kind", "--subject", "s", "--args", `{"name":"Ann"}`)
	s := db.run("erase", "--subject", "s", "--dry-run")
	is.Equal(s.code, cli.CodeOK)
	is.True(strings.Contains(s.out, "; 1 job stays") && strings.Contains(s.out, id))
	s = db.run("erase", "--subject", "s")
	is.Equal(s.code, cli.CodeRefused)
	is.True(strings.Contains(s.err, "1 job stays") && strings.Contains(s.err, id) && strings.Contains(s.err, "cancel")) // the error names the remedy
	is.True(strings.Contains(db.run("job", id).out, "Ann"))
	is.Equal(db.run("cancel", "--subject", "s").code, cli.CodeOK)
	is.Equal(db.run("erase", "--subject", "s", "--dry-run").out, "1 job would be erased, and the subject would be removed from 1 audit entry\n")
	s = db.run("erase", "--subject", "s")
	is.Equal(s.code, cli.CodeOK)
	is.Equal(s.out, "1 job erased, and the subject removed from 1 audit entry\n") // the audit entry of the cancel command
	is.True(!strings.Contains(db.run("job", id).out, "Ann"))
	is.True(strings.Contains(db.run("audit").out, "subject.erase"))
	_, err := pgtest.Connect(t, db.url).Exec(t.Context(), `insert into trapeze.lanes (name, engine) values ('video', 'temporal')`)
	is.NoErr(err)
	is.True(strings.Contains(db.run("erase", "--subject", "s").out, "copies of jobs that ran on temporal remain there")) // erase cannot reach those copies
	is.True(strings.Contains(db.run("events", "--job", id).out, "job.erased"))
}
