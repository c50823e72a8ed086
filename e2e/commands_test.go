package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestWaitCommandForPipeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, nil)
	steps := filepath.Join(t.TempDir(), "steps.json")
	is.NoErr(os.WriteFile(steps, []byte(`[{"kind":"demo.progress","args":{"steps":3,"ms":50}},{"kind":"demo.echo","args":{"last":true},"priority":0}]`), 0o600))

	good := db.run("enqueue", "demo.noop", "--subject", "travel/2025", "--chain", "@"+steps, "--wait", "--json")
	is.Equal(good.code, 0)
	answer := decoded[struct {
		ID    string
		State job.State
		Job   job.JobRow
	}](t, good.out)
	is.Equal(answer.State, job.Succeeded)
	is.Equal(answer.Job.Kind, "demo.echo") // the last step, not the submitted job
	is.Equal(answer.Job.Subject, "travel/2025")
	is.Equal(answer.Job.Priority, 0)
	is.Equal(string(answer.Job.Result), `{"last":true}`)

	bad := db.run("enqueue", "demo.noop", "--chain", `[{"kind":"demo.fail","args":{"message":"broken\nin two"}}]`, "--wait")
	is.Equal(bad.code, 1)
	is.True(strings.Contains(bad.err, "demo.fail) failed: error: broken")) // the reason, on one line
	is.Equal(strings.Count(bad.out, "\n"), 1)                              // stdout contains only the ID
}

func TestExportCommandLineFormat(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	for range 3 {
		db.enqueue("some.kind", "--args", `{"n":1}`)
	}
	jobs := strings.Split(strings.TrimSpace(db.ok("export", "jobs")), "\n")
	is.Equal(len(jobs), 3)
	first := decoded[job.JobRow](t, jobs[0])
	is.Equal(first.Kind, "some.kind")
	is.Equal(first.State, job.Pending)
	is.Equal(string(first.Args), `{"n":1}`) // exactly as submitted
	events := strings.Split(strings.TrimSpace(db.ok("export", "events")), "\n")
	is.Equal(len(events), 3)
	is.Equal(decoded[job.Event](t, events[0]).Event, "job.enqueued")

	listed := strings.Split(strings.TrimSpace(db.ok("jobs", "--json", "--limit", "2")), "\n")
	is.Equal(len(listed), 2)
	is.Equal(db.ok("jobs", "--state", "running", "--json"), "")
	var history []string
	pgtest.Wait(t, "the history is below the horizon", func() bool {
		history = strings.Split(strings.TrimSpace(db.ok("events", "--json")), "\n")
		return len(history) == 3
	})
	rest := db.ok("events", "--json", "--after", decoded[job.Event](t, history[1]).Cursor)
	is.Equal(strings.TrimSpace(rest), history[2]) // continues from the cursor without a gap or a duplicate
}

func TestRepeatedEnqueueCommandWithKeys(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	id := db.enqueue("some.kind", "--idempotency-key", "k1", "--args", `{"n":1}`)
	is.Equal(db.enqueue("some.kind", "--idempotency-key", "k1", "--args", `{"n":1}`), id)
	is.Equal(db.run("enqueue", "some.kind", "--idempotency-key", "k1", "--args", `{"n":2}`).code, 1) // the same key with different arguments

	id = db.enqueue("some.kind", "--unique", "u1")
	answer := decoded[map[string]any](t, db.ok("enqueue", "some.kind", "--unique", "u1", "--json"))
	is.Equal(answer["id"], id)
	is.Equal(answer["duplicate"], true)
}

func TestMigrateGoesUpAndDown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.EmptyURL(t)}
	is.Equal(db.run("jobs").code, 2) // the schema is missing, and the error explains how to create it
	is.True(strings.Contains(db.run("jobs").err, "trapeze migrate up"))
	db.ok("migrate", "up")
	is.Equal(db.ok("jobs", "--json"), "")
	is.True(!strings.Contains(db.ok("migrate", "status"), "pending"))
	is.Equal(db.run("migrate", "down").code, 2) // the target version is required
	db.ok("migrate", "down", "--to", "0")
	is.True(strings.Contains(db.ok("migrate", "status"), "pending"))
	is.True(strings.Contains(db.ok("migrate", "print", "--to", "1"), "create table trapeze.jobs"))
}

func TestCommandExitCodes(t *testing.T) {
	t.Parallel()
	unreachable := "DATABASE_URL=postgres://app:secret@127.0.0.1:1/app"
	for _, c := range []struct {
		name string
		env  []string
		args string
		code int
		says string
	}{
		{"no database", nil, "jobs", 2, "DATABASE_URL is not set"},
		{"an unreachable database", []string{unreachable}, "jobs", 3, "does not respond"},
		{"a pod with an unreachable database", []string{unreachable}, "serve", 3, "does not respond"},
		{"an invalid URL", []string{"DATABASE_URL=postgres://h:x/y"}, "jobs", 2, "DATABASE_URL"},
		{"an unknown command", nil, "nice-try", 2, "--help"},
		{"an unknown command of a group", nil, "migrate sideways", 2, "--help"},
		{"an unknown flag", nil, "jobs --colour", 2, "--help"},
		{"a missing argument", nil, "job", 2, "--help"},
		{"an invalid id", nil, "job abc", 2, "abc"},
		{"arguments that are not JSON", nil, "enqueue some.kind --args {", 2, "--args"},
		{"an invalid state", nil, "jobs --state happy", 2, "happy"},
		{"unknown error", nil, "version", 0, ""},
		{"help", nil, "enqueue --help", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			s := trapeze(t, c.env, strings.Fields(c.args)...)
			is.Equal(s.code, c.code)
			is.True(strings.Contains(s.err, c.says))          // the error names the remedy
			is.True(strings.Count(s.err, "\n") <= 1)          // the error is on one line
			is.True(!strings.Contains(s.err+s.out, "secret")) // the password is not shown
		})
	}
}

func TestNiceCommandNegativePriority(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	id := db.enqueue("some.kind")
	for _, args := range [][]string{
		{"nice", id, "-10"}, {"nice", id, "-10", "--chain"}, {"--reason", "-5", "nice", id, "-10"}, {"nice", "--chain", id, "--", "-10"},
	} {
		is.Equal(db.ok(args...), "job "+id+" has priority -10\n")
		is.Equal(db.job(id).Priority, -10)
		db.ok("nice", id, "7")
	}
	is.True(strings.Contains(db.run("nice", id, "-101").err, `priority "-101": want -100 to 100`))
	is.True(strings.Contains(db.run("nice", "-10").err, "missing argument: trapeze nice ID PRIORITY"))
}
