package temporal_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

// parcel is a job that is handled in batches.
type parcel struct{}

func (parcel) Kind() string { return "parcel" }

// Activities of one process share the calls of a batch function.
func TestTemporalBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := open(t, pgtest.Pool(t), temporal.Options{}, map[string]handler{"next": nothing})
	runner.HandleBatch(w.Runner, func(_ context.Context, jobs []*runner.Job[parcel]) []runner.BatchResult {
		results := make([]runner.BatchResult, len(jobs))
		for i := range jobs {
			results[i].Outcome = runner.Then(rawKind("next")).Result(len(jobs))
		}
		return results
	}, runner.BatchSize(2), runner.BatchWait(10*time.Minute))
	w.start()
	ids, err := w.EnqueueMany(t.Context(), []job.Args{parcel{}, parcel{}, parcel{}, parcel{}})
	is.NoErr(err)
	for _, id := range ids {
		j := w.wait(id)
		is.Equal(j.State, job.Succeeded)
		is.Equal(string(j.Result), "2")
	}
}
