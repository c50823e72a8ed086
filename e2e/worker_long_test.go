//go:build long

package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestRemoteWorkersPodKilled(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	first, second := dispatcher(t, db), dispatcher(t, db)
	startFar(t, first.HTTP+","+second.HTTP)
	id := db.arrives("demo.sleep", "--args", `{"ms":5000}`)
	first.signal(syscall.SIGKILL)
	j := db.inState(id, job.Succeeded)
	is.Equal(j.Fence, int64(1)) // the claim survived the death of the pod that served the stream
	is.Equal(j.Crashes, 0)
}

func TestLateResultFromFrozenWorker(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db)
	frozen := startFar(t, p.HTTP)
	id := db.arrives("demo.sleep", "--args", `{"ms":4000}`)
	frozen.signal(syscall.SIGSTOP)
	db.until(id, "loses its lease", func(j job.JobRow) bool { return j.Crashes == 1 })
	startFar(t, p.HTTP)
	j := db.inState(id, job.Succeeded)
	is.Equal(j.Fence, int64(2))
	frozen.signal(syscall.SIGCONT)
	next := db.enqueue("demo.noop") // gives the frozen worker time to wake up and learn that it has lost the job
	db.inState(next, job.Succeeded)
	is.Equal(db.job(id).Fence, int64(2))
	frozen.signal(syscall.SIGTERM)
	is.Equal(frozen.end(), cli.CodeOK)
}

func TestRemoteWorkersConnectionsCut(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db)
	proxy, err := faultnet.Start(strings.Replace(p.HTTP, "http://", "postgres://nobody:none@", 1) + "/none?sslmode=disable") // faultnet accepts only PostgreSQL URLs
	is.NoErr(err)
	defer proxy.Close()
	at, err := url.Parse(proxy.URL())
	is.NoErr(err)
	startFar(t, "http://"+at.Host, "TRAPEZE_POD_NAME=gpu-1")
	id := db.arrives("demo.sleep", "--args", fmt.Sprintf(`{"ms":%d}`, 8000*slow))
	for command, want := range map[string]string{"ps": "gpu-1 (remote)", "pods": ", stream 1", "job " + id: "gpu-1 (remote worker, id "} {
		if said := db.ok(strings.Fields(command)...); !strings.Contains(said, want) {
			t.Errorf("trapeze %s does not print %q:\n%s", command, want, said) // the output marks remote workers as such
		}
	}
	is.True(strings.Contains(db.ok("ps", "--stack", id), "internal/cli/program.")) // the handler's stack, from the worker's process
	pgtest.Wait(t, "the worker is connected", func() bool { return proxy.Links() > 0 })
	proxy.Reset()
	j := db.inState(id, job.Succeeded)
	is.Equal(j.Fence, int64(1)) // no other worker received the job
	is.Equal(j.Crashes, 0)

	// Assignments that are lost in the network return to the queue without counting as attempts.
	pgtest.Wait(t, "its stream is open again", func() bool { return strings.Contains(db.ok("pods"), ", stream 2") })
	proxy.Blackhole()
	id = db.enqueue("demo.sleep", "--args", `{"ms":1}`)
	db.until(id, "was sent", func(j job.JobRow) bool { return j.Fence > 0 })
	db.inState(id, job.Pending)
	proxy.Pass()
	j = db.inState(id, job.Succeeded)
	is.Equal(j.Attempt, 1)
	is.True(j.Fence > 1)
}

// arrives submits a job for a remote worker, and waits until the pod knows that the worker has received it. A pod that does not know this
// reclaims the job after two missed heartbeats, without waiting for the lease to expire.
func (d database) arrives(args ...string) (id string) {
	d.t.Helper()
	id = d.enqueue(args...)
	var fence int64
	var since time.Time
	d.until(id, "has arrived", func(j job.JobRow) bool {
		if j.State != job.Running || j.Fence != fence {
			fence, since = j.Fence, time.Now()
		}
		return j.State == job.Running && time.Since(since) > 1500*time.Millisecond
	})
	return id
}
