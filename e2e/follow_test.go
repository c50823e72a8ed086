package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestInterruptedWaitCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	c := exec.Command(os.Args[0], "enqueue", "nobody.runs", "--wait")
	c.Env = environment("DATABASE_URL=" + db.url)
	out, err := c.StdoutPipe()
	is.NoErr(err)
	is.NoErr(c.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	is.NoErr(err)
	is.NoErr(c.Process.Signal(os.Interrupt))
	is.True(c.Wait() != nil)
	is.Equal(c.ProcessState.ExitCode(), cli.CodeUnknown)
	is.Equal(db.job(strings.TrimSpace(line)).State, job.Pending) // the job is still pending
}

func TestFollowedJobEventsUntilEnd(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, nil)
	id := db.enqueue("demo.sleep", "--args", `{"ms":400}`)
	lines := strings.Split(strings.TrimSpace(db.ok("events", "--job", id, "--follow", "--json")), "\n")
	var names []string
	for i, line := range lines {
		e := decoded[job.Event](t, line)
		is.Equal(*e.EventNo, i+1) // the events have neither gaps nor duplicates
		names = append(names, e.Event)
	}
	is.Equal(names, []string{"job.enqueued", "job.claimed", "job.succeeded"})
	last := decoded[job.Event](t, lines[2]).Cursor
	is.Equal(db.run("events", "--job", id, "--follow", "--after", last).code, cli.CodeOK) // no event follows, because the job has ended

	// The last event now comes at the end of a full page.
	pool, err := pgxpool.New(t.Context(), db.url)
	is.NoErr(err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), `insert into trapeze.job_events (job, event_no, event, to_state)
		select $1, n, 'some.event', case n when 1000 then 'succeeded' else '' end from generate_series(4, 1000) n`, id)
	is.NoErr(err)
	is.Equal(strings.Count(db.ok("events", "--job", id, "--follow"), "\n"), 1000)
	is.Equal(db.run("events", "--job", "999999", "--follow").code, 1) // the job does not exist
}
