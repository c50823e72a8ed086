//go:build long

package main

import (
	"bytes"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// previousCommit is the commit of the version from which the tests upgrade.
const previousCommit = "6c23f67c3a222117631f9ef6bf23090a7bb46d4d"

// previousProgram builds the program of the previous version.
func previousProgram(t *testing.T) string {
	t.Helper()
	if out, err := exec.Command("git", "cat-file", "-e", previousCommit).CombinedOutput(); err != nil {
		t.Skipf("commit %s is not in this copy of the history: %v %s", previousCommit, err, out)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "trapeze-previous")
	source := filepath.Join(dir, "source")
	script := `mkdir -p "$2" && git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C "$2" && cd "$2" && go build -o "$3" ./cmd/trapeze`
	if out, err := exec.Command("sh", "-c", script, "sh", previousCommit, source, program).CombinedOutput(); err != nil {
		t.Fatalf("build the previous version: %v\n%s", err, out)
	}
	return program
}

// A fleet is upgraded pod by pod (F38). The schema is migrated while a pod of the previous version is running, and that pod then runs
// alongside a pod of the current version. Each pod runs jobs submitted by the other and takes over jobs from the other. Afterwards, the
// previous version refuses to start and reports why.
func TestPodsOfThePreviousVersionAndOfThisOneWorkSideBySide(t *testing.T) {
	is := is.New(t)
	previous := previousProgram(t)
	url := pgtest.EmptyURL(t)
	env := []string{"DATABASE_URL=" + url}
	migrate := exec.Command(previous, "migrate")
	migrate.Env = environment(env...)
	out, err := migrate.CombinedOutput()
	if err != nil {
		t.Fatalf("migrate with the previous version: %v %s", err, out)
	}
	quick := []string{"TRAPEZE_LEASE=3s", "TRAPEZE_HEARTBEAT=500ms"}
	old := serveWith(t, previous, url, quick)
	submit := func(p *pod, n int, body string) {
		t.Helper()
		for range n {
			response, err := http.Post(p.HTTP+"/jobs", "application/json", strings.NewReader(body))
			is.NoErr(err)
			_ = response.Body.Close()
			is.Equal(response.StatusCode, http.StatusAccepted)
		}
	}
	mixed := func(p *pod) {
		t.Helper()
		submit(p, 20, `{"kind":"demo.noop"}`)
		submit(p, 20, `{"kind":"demo.noop","subject":"s"}`)
		submit(p, 20, `{"kind":"demo.sleep","args":{"ms":20},"chain":[{"kind":"demo.noop"},{"kind":"demo.sleep","args":{"ms":20}}]}`)
		submit(p, 5, `{"kind":"demo.retry_later"}`)
		submit(p, 5, `{"kind":"demo.fail"}`)
	}
	pool := pgtest.Connect(t, url)
	count := func(sql string, args ...any) (n int) {
		t.Helper()
		is.NoErr(pool.QueryRow(t.Context(), sql, args...).Scan(&n))
		return n
	}
	rest := func() {
		t.Helper()
		pgtest.WaitFor(t, time.Minute, "everything has ended", func() bool {
			return count(`select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0
		})
	}
	mixed(old)
	database{t, url}.ok("migrate", "up") // while the old pod is running jobs
	mixed(old)
	young := serve(t, url, quick)
	mixed(old)
	mixed(young)
	mixed(old)
	rest()
	is.Equal(count(`select count(*) from trapeze.job where state = 'failed'`), 25) // only the jobs that are meant to fail
	is.Equal(count(`select count(*) from trapeze.job where state = 'succeeded'`), 5*(20+20+3*20+5))
	is.Equal(count(`select count(distinct boot) from trapeze.job_event where event = 'job.claimed'`), 2) // both pods have run jobs

	// Each version takes over running jobs when a pod of the other version is killed.
	took := func(victim *pod) {
		t.Helper()
		submit(victim, 40, `{"kind":"demo.sleep","args":{"ms":1000}}`)
		recovered := count(`select count(*) from trapeze.job_event where event = 'job.recovered'`)
		pgtest.Wait(t, "the pod runs some of them", func() bool {
			return count(`select count(*) from trapeze.live l join trapeze.pods p on p.boot = l.pod where p.boot = $1::uuid`, victim.Boot) > 0
		})
		victim.signal(syscall.SIGKILL)
		rest()
		is.True(count(`select count(*) from trapeze.job_event where event = 'job.recovered'`) > recovered)
	}
	took(young) // the old pod takes over, because no other pod is left
	young = serve(t, url, quick)
	took(old)

	again := exec.Command(previous, "serve")
	again.Env = environment(append(env, append(quick, "TRAPEZE_HTTP_ADDR=127.0.0.1:0")...)...)
	var says bytes.Buffer
	again.Stdout, again.Stderr = &says, &says
	is.True(again.Run() != nil)
	is.True(strings.Contains(says.String(), "this program knows"))
	is.Equal(young.status("/readyz"), http.StatusOK)
	is.Equal(count(`select count(*) from trapeze.job where state not in ('succeeded', 'failed')`), 0)
	is.Equal(count(`select count(*) from trapeze.job where state = 'failed'`), 25)
}
