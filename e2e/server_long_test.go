//go:build long

package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// bothWays runs a command directly on the database and through the server, and requires the same result.
func bothWays(t *testing.T, db database, server string, args ...string) result {
	t.Helper()
	is := is.New(t)
	there, here := through(t, server, args...), db.run(args...)
	is.Equal(there, here) // the same output, error and exit code
	return here
}

func TestCommandOutputThroughServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pod := serve(t, db.url, nil)

	made := through(t, pod.HTTP, "enqueue", "demo.echo", "--args", `{"a":"<b>"}`, "--subject", "s", "--chain", `[{"kind":"demo.fail","args":{"message":"broken"}}]`, "--wait")
	is.Equal(made.code, 1) // the command waited for the pipeline, which failed
	is.True(strings.Contains(made.err, "demo.fail) failed: error: broken"))
	id := strings.TrimSpace(made.out)
	key := []string{"enqueue", "demo.noop", "--idempotency-key", "k", "--delay", "90m", "--priority", "0", "--unique", "u", "--json"}
	first := decoded[map[string]any](t, through(t, pod.HTTP, key...).out)
	is.Equal(decoded[map[string]any](t, db.ok(key...))["id"], first["id"]) // the key is recognized both directly and through the server
	is.Equal(db.job(first["id"].(string)).Priority, 0)

	var kept string
	is.NoErr(pgtest.Connect(t, db.url).QueryRow(t.Context(), `select args from trapeze.jobs where id = $1::text::bigint`, id).Scan(&kept))
	is.Equal(kept, `{"a":"<b>"}`) // exactly as typed
	foreign := []string{"enqueue", "another.programs", "--chain", `[{"kind":"likewise","args":{"a":"<b>"}}]`, "--json"}
	is.Equal(through(t, pod.HTTP, foreign...).code, 0) // the server need not know the kind
	is.Equal(db.run(foreign...).code, 0)               // nor does a command without a server
	bothWays(t, db, pod.HTTP, "job", id, "--json")
	bothWays(t, db, pod.HTTP, "job", id)
	bothWays(t, db, pod.HTTP, "jobs", "--json")
	is.True(strings.Contains(bothWays(t, db, pod.HTTP, "jobs", "--state", "failed", "--since", "24h", "--json").out, "broken"))
	bothWays(t, db, pod.HTTP, "events", "--job", id, "--json")
	pgtest.Wait(t, "the history is below the horizon", func() bool {
		return strings.Count(db.ok("events", "--json", "--pipeline", id), "\n") == 6
	})
	bothWays(t, db, pod.HTTP, "events", "--pipeline", id, "--json")
	bothWays(t, db, pod.HTTP, "events", "--json")
	is.Equal(strings.Count(bothWays(t, db, pod.HTTP, "export", "jobs").out, "\n"), 5)
	bothWays(t, db, pod.HTTP, "export", "events")
}

func TestEndJobsThroughServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pod := serve(t, db.url, nil)
	waiting := db.enqueue("demo.noop", "--delay", "1h")
	is.True(strings.Contains(bothWays(t, db, pod.HTTP, "job", waiting).out, "waits because  not due yet: 20")) // the output shows when the job is due
	killed := through(t, pod.HTTP, "kill", waiting)
	is.Equal(killed, result{out: "job " + waiting + " is cancelled\n"})
	is.Equal(bothWays(t, db, pod.HTTP, "kill", waiting).code, 1) // the job has already ended
	is.Equal(bothWays(t, db, pod.HTTP, "force-cancel", waiting).code, 1)
	is.Equal(bothWays(t, db, pod.HTTP, "job", "999999").code, 1) // the job does not exist
	is.Equal(bothWays(t, db, pod.HTTP, "kill", "999999").code, 1)
	is.Equal(bothWays(t, db, pod.HTTP, "jobs", "--state", "happy").code, 2)
	is.Equal(bothWays(t, db, pod.HTTP, "enqueue", "demo.noop", "--lane", "nowhere").code, 1)
	is.Equal(bothWays(t, db, pod.HTTP, "enqueue", "demo.noop", "--priority", "101").code, 2)
	deaf := db.enqueue("demo.sleep", "--args", `{"ms":600000}`)
	db.inState(deaf, job.Running)
	is.Equal(decoded[map[string]string](t, through(t, pod.HTTP, "force-cancel", deaf, "--json").out)["state"], "cancelled")
}

func TestPasswordInServerAddress(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, address := range []string{"http://ops:hunter2@127.0.0.1:1", "https://ops:hunter2@jobs.example.org/ops", "http://ops:hunter2%zz@127.0.0.1:1", "ops:hunter2@127.0.0.1:1"} {
		for _, command := range []string{"jobs", "doctor", "cancel", "migrate", "worker"} {
			args := map[string][]string{"cancel": {"cancel", "7"}, "migrate": {"migrate", "status"}}[command]
			if args == nil {
				args = []string{command}
			}
			for _, s := range []result{
				trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true"}, append(args, "--server", address)...),
				trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_SERVER=" + address}, args...),
			} {
				is.Equal(s.code, 2)
				is.True(!strings.Contains(s.out+s.err, "hunter2"))
			}
		}
	}
}
