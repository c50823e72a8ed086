package runner_test

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestLostReplyToCancel(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	proxy, pool := cable(t, url)
	r := newRunner(t, pool, named("a"), map[string]handler{"kind-a": succeed})
	id := enqueue(t, r, rawArgs("kind-a"))
	cut, _ := proxy.CutReply("from trapeze.live where id = $1 for update")
	_, err := r.Admin("ada").Cancel(t.Context(), id)
	<-cut
	is.True(errors.Is(err, job.ErrOutcomeUnknown)) // the cancellation was committed, but its reply was lost
	pgtest.Wait(t, "the job is cancelled", func() bool { return get(t, r, id).State == job.Cancelled })
	_, err = r.Admin("ada").Cancel(t.Context(), id)
	is.True(errors.Is(err, job.ErrAlreadyTerminal)) // repeating the call returns the outcome
}
