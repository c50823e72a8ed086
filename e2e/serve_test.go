package e2e

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestServeMigrationRegistrationDrain(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.EmptyURL(t)}
	p := serve(t, db.url, []string{"TRAPEZE_POD_NAME=web-1"})
	is.True(p.Ready)
	is.Equal(p.Pod, "web-1")
	is.True(strings.HasPrefix(p.HTTP, "http://127.0.0.1:"))
	is.Equal(p.status("/healthz"), http.StatusOK)
	is.Equal(p.status("/readyz"), http.StatusOK)
	is.Equal(p.status("/metrics"), http.StatusOK)

	id := db.running(1500 * time.Millisecond)
	p.signal(syscall.SIGTERM)
	pgtest.Wait(t, "the pod is not ready any more", func() bool { return p.status("/readyz") == http.StatusServiceUnavailable })
	is.Equal(p.end(), 0)
	is.Equal(db.job(id).State, job.Succeeded) // the drain waited for the job
	pods := decoded[job.Pod](t, db.ok("pods", "--all", "--json"))
	is.Equal(*pods.Closed, "left") // the pod's row is closed
}

func TestServeShutdownWithOpenStream(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := serve(t, db.url, nil)
	response, err := http.Get(p.HTTP + "/events/stream")
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.StatusCode, http.StatusOK)
	p.signal(syscall.SIGTERM)
	said, err := io.ReadAll(response.Body) // the pod ends the stream
	is.NoErr(err)
	is.True(strings.HasSuffix(string(said), ": this pod is stopping\n\n"))
	is.Equal(p.end(), 0)
}

func TestServeSecondSignal(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := serve(t, db.url, []string{"TRAPEZE_SHUTDOWN_GRACE=10m"})
	id := db.enqueue("demo.sleep", "--args", `{"ms":600000}`)
	db.inState(id, job.Running)
	p.signal(syscall.SIGTERM)
	pgtest.Wait(t, "the pod drains", func() bool { return p.status("/readyz") == http.StatusServiceUnavailable })
	p.signal(syscall.SIGTERM)
	is.Equal(p.end(), 0)
	j := db.job(id)
	is.Equal(j.State, job.Pending) // the job was returned to the queue instead of being lost
	is.Equal(j.Attempt, 0)         // returning the job does not count as an attempt
}

func TestAPasswordIsNeverShown(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://app:secret@db:5433/co2?sslmode=disable": "postgres://app:xxxxx@db:5433/co2?sslmode=disable",
		"postgres://app@a:1,b:2/co2?password=secret":        "postgres://app:xxxxx@a:1,b:2/co2",
		"host=/run/pg user=app password=secret dbname=co2":  "postgres://app:xxxxx@/co2?host=/run/pg&port=5432",
		"postgres://app@[::1]/co2?sslmode=require":          "postgres://app@[::1]:5432/co2",
	} {
		t.Run(want, func(t *testing.T) {
			is := is.New(t)
			t.Setenv("PGPASSFILE", "/nowhere")
			is.Equal(cli.Masked(url), want)
		})
	}
}

func TestServeShutdownWithStuckHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := serve(t, db.url, []string{"TRAPEZE_SHUTDOWN_GRACE=100ms"})
	id := db.enqueue("demo.block")
	db.inState(id, job.Running)
	began := time.Now()
	p.signal(syscall.SIGTERM)
	is.Equal(p.end(), 0)
	is.True(time.Since(began) < 10*time.Second)                       // the grace period, one second for the handler, and the shutdown
	is.Equal(db.job(id).State, job.Pending)                           // another pod can claim the job
	is.True(strings.Contains(p.log.String(), "ignores the shutdown")) // the shutdown logs a warning
}
