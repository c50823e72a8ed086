package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod that has requested a slot for a lane while no job was waiting there pauses briefly before it requests one again. A job submitted
// during the pause must trigger a request after the pause, even on a pod that receives no notifications because it has no direct
// connection.
func TestJobAfterFailedSlotRequest(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('one', 1)`)
	o := runner.Options{Slots: 4, HeartbeatInterval: 2 * time.Second, PollInterval: time.Minute, DirectURL: "off"}
	pod := start(t, pool, o, map[string]handler{"k": succeed})
	ids, err := pod.EnqueueMany(t.Context(), []job.Args{rawArgs("k")}) // claimed by a poll, which also requests a slot in the other lane
	is.NoErr(err)
	is.Equal(waitEnded(t, pod, ids[0]).State, job.Succeeded)
	began := time.Now()
	k := enqueue(t, pod, rawArgs("k"), runner.Lane("one"))
	is.Equal(waitEnded(t, pod, k).State, job.Succeeded)
	is.True(time.Since(began) < 10*time.Second) // without waiting for the next poll
}
