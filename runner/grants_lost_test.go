package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod that has just asked for a slot of a lane in vain, as nothing waited there, does not ask again for a moment. What is submitted in that
// moment must be asked for after it, also by a pod that hears no notification: one without a direct connection, or that has only begun.
func TestAJobOfALimitedLaneThatComesRightAfterAQuestionInVainDoesNotWaitForThePoll(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('one', 1)`)
	o := runner.Options{Slots: 4, HeartbeatEvery: 2 * time.Second, PollEvery: time.Minute, DirectURL: "off"}
	pod := start(t, pool, o, map[string]does{"k": nothing})
	ids, err := pod.EnqueueMany(t.Context(), []job.Args{of("k")}) // is claimed by a look, which asks for a slot of the other lane too
	is.NoErr(err)
	is.Equal(ended(t, pod, ids[0]).State, job.Succeeded)
	began := time.Now()
	k := enqueue(t, pod, of("k"), runner.Lane("one"))
	is.Equal(ended(t, pod, k).State, job.Succeeded)
	is.True(time.Since(began) < 10*time.Second) // not by the poll
}
