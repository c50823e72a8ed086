//go:build long

package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// A worker logs one line each when it starts, is accepted, drains and stops, and one per failed job. Jobs that succeed are logged only at
// the debug level.
func TestRemoteWorkerLogLines(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db)
	cmd, said := startSaying(t, p.HTTP, "TRAPEZE_KINDS=demo.echo,demo.fail,demo.progress")
	said.until(`msg="accepted by a pod" server=` + p.HTTP)
	db.inState(db.enqueue("demo.echo"), job.Succeeded)
	for range 5 { // the last progress report has been stored by the time the job ends
		done := db.inState(db.enqueue("demo.progress", "--args", `{"steps":3,"ms":20}`), job.Succeeded).Progress
		is.Equal(*done.Done, int64(3))
	}
	failed := db.enqueue("demo.fail", "--args", `{"message":"no paper"}`)
	db.inState(failed, job.Failed)
	said.until(`level=WARN msg="handler returned an error" job_id=` + failed)
	is.NoErr(cmd.Process.Signal(syscall.SIGTERM))
	said.until("remote worker stopped")
	// Once a worker is gone, its jobs and events still show that it was a remote worker.
	is.True(strings.Contains(db.ok("job", failed), "(remote worker, id "))
	is.Equal(strings.Count(db.ok("events", "--job", failed), " (remote)"), 2) // the claimed and failed events
	if text := said.all.String(); strings.Count(text, "\n") != 5 {
		t.Errorf("want five lines, have:\n%s", text)
	}
	is.True(!strings.Contains(said.all.String(), "level=ERROR"))
	// The pod's log contains no complaint about the worker's reports.
	log := p.log.String()
	is.True(!strings.Contains(log, "not known")) // all reports were accepted
}
