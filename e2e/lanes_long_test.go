//go:build long

package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestPauseDrainFreezeCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pod := serve(t, db.url, []string{"TRAPEZE_POD_NAME=web-1", "TRAPEZE_LANES=interactive=2:demo.echo"})
	id := db.enqueue("demo.sleep", "--args", `{"ms":600000}`)
	db.inState(id, job.Running)

	vain := db.run("freeze", "--wait", "300ms")
	is.Equal(vain.code, 1)
	is.Equal(vain.out, "frozen; 1 job still running\n")
	is.True(strings.Contains(vain.err, "none was stopped"))
	is.Equal(db.job(id).State, job.Running)
	is.True(strings.Contains(db.ok("lanes"), "frozen"))
	db.ok("kill", id)
	is.Equal(db.ok("freeze", "--wait", "20s"), "already frozen; no running jobs\n")
	waits := db.enqueue("demo.noop")
	is.Equal(db.job(waits).State, job.Pending)
	is.Equal(db.ok("unfreeze"), "unfrozen\n")
	db.inState(waits, job.Succeeded)

	is.Equal(db.ok("drain", "interactive", "--wait", "20s"), "lane interactive drained; no running jobs\n")
	waits = db.enqueue("demo.echo") // TRAPEZE_LANES assigns the kind to this lane
	is.Equal(db.ok("pause"), "paused\n")
	is.True(strings.Contains(db.ok("lanes"), "paused"))
	is.Equal(db.ok("resume"), "resumed\n")
	is.Equal(db.ok("unfreeze"), "already unfrozen\n")
	is.Equal(db.job(waits).State, job.Pending)
	is.Equal(db.ok("undrain", "interactive"), "lane interactive undrained\n")
	db.inState(waits, job.Succeeded)

	is.Equal(decoded[job.DrainResult](t, db.ok("drain", "--pod", "web-1", "--wait", "20s", "--json")), job.DrainResult{Changed: true, Quiet: true})
	is.True(strings.Contains(db.ok("pods"), "drained"))
	pgtest.Wait(t, "the pod is not ready", func() bool { return pod.status("/readyz") == 503 })
	is.Equal(pod.status("/healthz"), 200)
	again := serve(t, db.url, []string{"TRAPEZE_POD_NAME=web-1"}) // a new process starts even if its pod is drained
	is.Equal(again.status("/readyz"), 503)
	is.Equal(db.ok("undrain", "--pod", "web-1"), "pod web-1 undrained\n")
	pgtest.Wait(t, "both are ready", func() bool { return pod.status("/readyz") == 200 && again.status("/readyz") == 200 })
	is.Equal(db.run("drain", "--pod", "nobody").code, 1)
}
