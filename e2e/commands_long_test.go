//go:build long

package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestJobEndingCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, []string{"TRAPEZE_LEASE_DURATION=3s", "TRAPEZE_HEARTBEAT_INTERVAL=200ms"})
	running := func(args ...string) string {
		id := db.enqueue(args...)
		db.inState(id, job.Running)
		return id
	}

	id := running("demo.sleep", "--args", `{"ms":600000}`, "--subject", "s")
	is.True(strings.Contains(db.ok("ps"), "demo.sleep"))
	stack := db.ok("ps", "--stack", id)
	is.True(strings.HasPrefix(stack, "job "+id+", fence 1, on pod ") && strings.Count(stack, "\ngoroutine ") == 1 && strings.Contains(stack, "demo"))
	is.Equal(strconv.FormatInt(decoded[job.Stack](t, db.ok("ps", "--stack", id, "--json")).Job, 10), id)
	_, found, _ := strings.Cut(db.ok("jobs", "--search", "args.ms=600000", "--state", "running"), "\n")
	is.Equal(strings.Fields(found)[0], id)
	is.Equal(db.run("jobs", "--search", "args.ms").code, 2)
	is.Equal(decoded[map[string]string](t, db.ok("kill", id, "--json"))["id"], id)
	db.inState(id, job.Cancelled)

	again := db.run("kill", id)
	is.Equal(again.code, 1) // the job has already ended
	none := db.run("ps", "--stack", id)
	is.Equal(none.code, 1)
	is.True(strings.Contains(none.err, "no pod is running the job"))

	deaf := running("demo.sleep", "--args", `{"ms":3000,"ignore_ctx":true}`)
	is.Equal(strings.TrimSpace(db.ok("force-cancel", deaf)), "job "+deaf+" is cancelled")
	is.Equal(db.job(deaf).State, job.Cancelled) // without waiting for the handler

	waiting := db.enqueue("demo.noop", "--delay", "1h")
	db.ok("kill", waiting)
	is.Equal(db.job(waiting).State, job.Cancelled)
	is.Equal(db.run("job", "999999").code, 1) // no such job
}
