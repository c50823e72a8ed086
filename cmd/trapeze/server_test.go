package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// through runs a command that uses a server instead of the database.
func through(t *testing.T, server string, args ...string) said {
	t.Helper()
	return trapeze(t, []string{"TRAPEZE_SERVER=" + server}, args...)
}

// bothWays runs a command directly on the database and through the server, and requires the same result.
func bothWays(t *testing.T, db database, server string, args ...string) said {
	t.Helper()
	is := is.New(t)
	there, here := through(t, server, args...), db.run(args...)
	is.Equal(there, here) // the same output, error and exit code
	return here
}

func TestCommandsSayTheSameThroughAServer(t *testing.T) {
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
	is.Equal(decoded[map[string]any](t, db.ok(key...))["id"], first["id"]) // the key is recognized either way
	is.Equal(db.job(first["id"].(string)).Priority, 0)

	var kept string
	is.NoErr(pgtest.Connect(t, db.url).QueryRow(t.Context(), `select args from trapeze.jobs where id = $1::text::bigint`, id).Scan(&kept))
	is.Equal(kept, `{"a":"<b>"}`) // exactly as typed
	foreign := []string{"enqueue", "another.programs", "--chain", `[{"kind":"likewise","args":{"a":"<b>"}}]`, "--json"}
	is.Equal(through(t, pod.HTTP, foreign...).code, 0) // the server need not know the kind
	is.Equal(db.run(foreign...).code, 0)               // the command need not know it either
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

func TestCommandsEndJobsThroughAServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pod := serve(t, db.url, nil)
	waiting := db.enqueue("demo.noop", "--delay", "1h")
	is.True(strings.Contains(bothWays(t, db, pod.HTTP, "job", waiting).out, "waits because  not due yet: 20")) // the output shows when the job is due
	killed := through(t, pod.HTTP, "kill", waiting)
	is.Equal(killed, said{out: "job " + waiting + " is cancelled\n"})
	is.Equal(bothWays(t, db, pod.HTTP, "kill", waiting).code, 1) // the job has already ended
	is.Equal(bothWays(t, db, pod.HTTP, "stop", waiting).code, 1)
	is.Equal(bothWays(t, db, pod.HTTP, "job", "999999").code, 1) // the job does not exist
	is.Equal(bothWays(t, db, pod.HTTP, "kill", "999999").code, 1)
	is.Equal(bothWays(t, db, pod.HTTP, "jobs", "--state", "happy").code, 2)
	is.Equal(bothWays(t, db, pod.HTTP, "enqueue", "demo.noop", "--lane", "nowhere").code, 1)
	is.Equal(bothWays(t, db, pod.HTTP, "enqueue", "demo.noop", "--priority", "101").code, 2)
	deaf := db.enqueue("demo.sleep", "--args", `{"ms":600000}`)
	db.inState(deaf, job.Running)
	is.Equal(decoded[map[string]string](t, through(t, pod.HTTP, "stop", deaf, "--json").out)["state"], "cancelled")
}

func TestWhatAServerAnswersIsAnExitCode(t *testing.T) {
	t.Parallel()
	answer := func(status int, code, detail string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			if code != "" {
				_ = json.NewEncoder(w).Encode(map[string]string{"code": code, "message": "no", "detail": detail, "request_id": "r1"})
			}
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		args    string
		code    int
		says    string
	}{
		{"no authentication", answer(401, "unauthenticated", ""), "jobs", 2, "TRAPEZE_TOKEN"},
		{"a missing permission", answer(403, "forbidden", "permission jobs:read is required"), "jobs", 1, "jobs:read"},
		{"too many requests", answer(429, "rate_limited", "one a second"), "jobs", 3, "one a second"},
		{"no database behind the server", answer(503, "unavailable", ""), "jobs", 3, "request r1"},
		{"an unknown outcome", answer(503, "outcome_unknown", "the connection was lost"), "kill 7", 4, "the connection was lost"},
		{"a proxy without a server", answer(502, "", ""), "jobs", 3, "502"},
		{"a proxy that lost its server", answer(504, "", ""), "kill 7", 4, "504"},
		{"something else", answer(404, "", ""), "jobs", 2, "prefix"},
		{"an older release", answer(404, "not_found", ""), "export jobs", 1, "check its release"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "kill 7", 2, "/elsewhere"},
		{"not JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, "jobs", 3, "decode the response"},
		{"disconnects before a command is answered", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "kill 7", 4, "may have taken effect"},
		{"disconnects before a read is answered", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "jobs", 3, "does not respond"},
		{"disconnects while it answers", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"id":"1"}`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "export jobs", 3, "the output is incomplete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			web := httptest.NewServer(c.handler)
			defer web.Close()
			s := through(t, web.URL, strings.Fields(c.args)...)
			is.Equal(s.code, c.code)
			is.True(strings.Contains(s.err, c.says)) // the error names the remedy
			is.Equal(strings.Count(s.err, "\n"), 1)  // the error is on one line
		})
	}
}

func TestATokenIsSentAndNeverShown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	asked := make(chan *http.Request, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Clone(t.Context())
		fmt.Fprint(w, `{"id":"7","state":"cancelled"}`)
	}))
	defer web.Close()
	secret := "a-secret-of-twenty-characters"
	s := trapeze(t, []string{"TRAPEZE_TOKEN=" + secret}, "--server", web.URL+"/jobs-api/", "kill", "7", "--reason", "wrong year")
	is.Equal(s.code, 0)
	r := <-asked
	is.Equal(r.URL.Path, "/jobs-api/admin/workers/jobs/7/cancel") // the path includes the server's prefix
	is.Equal(r.Header.Get("Authorization"), "Bearer "+secret)
	is.Equal(r.Header.Get("X-Reason"), "wrong year")
	s = trapeze(t, []string{"TRAPEZE_TOKEN=" + secret}, "--server", "http://127.0.0.1:1", "jobs")
	is.Equal(s.code, 3)
	is.True(!strings.Contains(s.err+s.out, secret))
	is.Equal(trapeze(t, nil, "--server", "127.0.0.1:8080", "jobs").code, 2)                                 // not a URL
	is.Equal(trapeze(t, []string{"TRAPEZE_SERVER=ftp://x"}, "jobs").code, 2)                                // not an HTTP URL
	is.True(strings.Contains(trapeze(t, []string{"TRAPEZE_SERVER=ftp://x"}, "jobs").err, "TRAPEZE_SERVER")) // the error names the variable
	two := "TRAPEZE_SERVER=http://127.0.0.1:1,http://127.0.0.1:2"
	is.Equal(trapeze(t, []string{two}, "jobs").code, 2)                                              // a command accepts only one server
	is.True(strings.Contains(trapeze(t, []string{two}, "worker").err, "TRAPEZE_DEMO_HANDLERS=true")) // a remote worker accepts several servers, so only the handlers are missing
}

func TestAPasswordInAServersAddressIsNeverShown(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, address := range []string{"http://ops:hunter2@127.0.0.1:1", "https://ops:hunter2@jobs.example.org/ops", "http://ops:hunter2%zz@127.0.0.1:1", "ops:hunter2@127.0.0.1:1"} {
		for _, command := range []string{"jobs", "doctor", "cancel", "migrate", "worker"} {
			args := map[string][]string{"cancel": {"cancel", "7"}, "migrate": {"migrate", "status"}}[command]
			if args == nil {
				args = []string{command}
			}
			for _, s := range []said{
				trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true"}, append(args, "--server", address)...),
				trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_SERVER=" + address}, args...),
			} {
				is.Equal(s.code, 2)
				is.True(!strings.Contains(s.out+s.err, "hunter2"))
			}
		}
	}
}

func TestACommandActsOnTheServerThatItNamesOrRefuses(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.EmptyURL(t)}
	for _, args := range []string{"migrate up", "migrate status", "migrate down --to 0"} {
		refused := db.run(append(strings.Fields(args), "--server", "http://127.0.0.1:1")...)
		is.Equal(refused, said{code: 2, err: "trapeze: migrate works on the database, not through a server: set DATABASE_URL, and omit --server (TRAPEZE_SERVER)\n"})
	}
	is.Equal(db.run("serve", "--server", "http://127.0.0.1:1"), said{code: 2,
		err: "trapeze: serve runs a pod on the database, not through a server: set DATABASE_URL, and omit --server; trapeze worker runs jobs through a server\n"})
	is.Equal(db.run("demo", "--server", "http://127.0.0.1:1").code, 2)
	is.True(strings.Contains(db.ok("migrate", "status"), "pending"))     // nothing was migrated
	is.Equal(db.run("doctor", "--server", "http://127.0.0.1:1").code, 3) // it examines the server, not the database
}
