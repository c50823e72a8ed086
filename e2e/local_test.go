package e2e

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Without a server, a command uses an API in the command's process. The API's log is discarded, so the error must include the database's
// error text.
func TestDatabaseErrorWithoutServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	db, direct := database{t, proxy.URL()}, database{t, url}
	id := direct.enqueue("some.kind")

	cut, _ := proxy.CutReply("from trapeze.live where id = $1 for update")
	s := db.run("kill", id)
	<-cut
	is.Equal(s.code, cli.CodeUnknown)
	is.True(strings.Contains(s.err, job.ErrOutcomeUnknown.Error()))
	is.Equal(strings.Count(s.err, "\n"), 1)
	direct.inState(id, job.Cancelled) // the job was cancelled
	is.Equal(db.run("kill", id).code, cli.CodeRefused)

	pool := pgtest.Connect(t, url)
	_, err := pool.Exec(t.Context(), `alter table trapeze.kind_retention rename to elsewhere`)
	is.NoErr(err)
	s = db.run("retention", "ls")
	is.Equal(s.code, cli.CodeRefused)
	is.True(strings.Contains(s.err, "kind_retention")) // PostgreSQL's error names the table
}

func TestExportLosesDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	r, err := runner.New(pgtest.Connect(t, url), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	large := []byte(`"` + strings.Repeat("x", 500_000) + `"`)
	for range 40 {
		_, err := r.Enqueue(t.Context(), runner.Raw{Name: "some.kind", JSON: large}, runner.AllowUnregistered())
		is.NoErr(err)
	}
	proxy := pgtest.NewProxy(t, url)
	c := exec.Command(os.Args[0], "export", "jobs")
	var errs bytes.Buffer
	c.Env, c.Stderr = environment("DATABASE_URL="+proxy.URL()), &errs
	out, err := c.StdoutPipe()
	is.NoErr(err)
	is.NoErr(c.Start())
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n') // rows are printed as they are read, so the export now waits for this reader
	is.NoErr(err)
	proxy.Reset()
	_, err = io.Copy(io.Discard, lines)
	is.NoErr(err)
	is.True(c.Wait() != nil)
	is.Equal(c.ProcessState.ExitCode(), cli.CodeUnavailable)
	is.True(strings.Contains(errs.String(), "the output is incomplete"))
}
