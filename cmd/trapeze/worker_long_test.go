//go:build long

package main

import (
	"syscall"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli/exit"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestARemoteWorkerGoesToAnotherPodWithWhatItRuns(t *testing.T) {
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

func TestTheResultOfARemoteWorkerThatWasFrozenIsRefused(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db)
	frozen := startFar(t, p.HTTP)
	id := db.arrives("demo.sleep", "--args", `{"ms":4000}`)
	frozen.signal(syscall.SIGSTOP)
	db.until(id, "loses its lease", func(j job.Job) bool { return j.Crashes == 1 })
	startFar(t, p.HTTP)
	j := db.inState(id, job.Succeeded)
	is.Equal(j.Fence, int64(2))
	frozen.signal(syscall.SIGCONT)
	next := db.enqueue("demo.noop") // gives the frozen worker time to wake up and learn that it lost the job
	db.inState(next, job.Succeeded)
	is.Equal(db.job(id).Fence, int64(2))
	frozen.signal(syscall.SIGTERM)
	is.Equal(frozen.end(), exit.CodeOK)
}
