package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// through runs a command that uses a server rather than the database.
func through(t *testing.T, server string, args ...string) result {
	t.Helper()
	return trapeze(t, []string{"TRAPEZE_SERVER=" + server}, args...)
}

func TestExitCodesOfServerResponses(t *testing.T) {
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

func TestCommandTokenNotShown(t *testing.T) {
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
	is.Equal(trapeze(t, []string{two}, "jobs").code, 2)                                              // a command accepts only a single server
	is.True(strings.Contains(trapeze(t, []string{two}, "worker").err, "TRAPEZE_DEMO_HANDLERS=true")) // a remote worker accepts several servers, so the error is only about the missing handlers
}

// A pod that lacks DATABASE_URL would otherwise be ready on an empty database of its own.
func TestServeInKubernetesWithoutDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	got := trapeze(t, []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "PGBIN=/nowhere"}, "serve")
	is.Equal(got, result{code: 2, err: "trapeze: DATABASE_URL is not set: set it, or name the data of a private PostgreSQL with --data-dir\n"})
}

func TestServerFlagOnDatabaseCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.EmptyURL(t)}
	for _, args := range []string{"migrate up", "migrate status", "migrate down --to 0"} {
		refused := db.run(append(strings.Fields(args), "--server", "http://127.0.0.1:1")...)
		is.Equal(refused, result{code: 2, err: "trapeze: migrate works on the database, not through a server: set DATABASE_URL, and omit --server (TRAPEZE_SERVER)\n"})
	}
	is.Equal(db.run("serve", "--server", "http://127.0.0.1:1"), result{code: 2,
		err: "trapeze: serve runs a pod on the database, not through a server: set DATABASE_URL, and omit --server; trapeze worker runs jobs through a server\n"})
	is.Equal(db.run("demo", "--server", "http://127.0.0.1:1").code, 2)
	is.True(strings.Contains(db.ok("migrate", "status"), "pending"))     // nothing was migrated
	is.Equal(db.run("doctor", "--server", "http://127.0.0.1:1").code, 3) // doctor examines the server instead of the database
}
