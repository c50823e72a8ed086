package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

type Reindex struct{ Doc string }

func (Reindex) Kind() string { return "reindex" }

// index stands for a service that takes many documents in one request, and reports an error for each.
func index(_ context.Context, docs []string) (errs []error) {
	for _, doc := range docs {
		var err error
		if doc == "" {
			err = runner.Permanent(errors.New("an empty document"))
		}
		errs = append(errs, err)
	}
	return errs
}

// A batch function handles up to a hundred jobs in one call. The failure of one job does not affect the others.
func ExampleHandleBatch() {
	ctx, r, stop := serve(func(r *runner.Runner) {
		runner.HandleBatch(r, func(ctx context.Context, jobs []*runner.Job[Reindex]) []runner.BatchResult {
			docs := make([]string, len(jobs))
			for i, j := range jobs {
				docs[i] = j.Args.Doc
			}
			results := make([]runner.BatchResult, len(jobs))
			for i, err := range index(ctx, docs) { // one request for all documents
				results[i].Err = err
			}
			return results
		}, runner.BatchSize(100), runner.BatchWait(50*time.Millisecond))
	})
	defer stop()
	ids, err := r.EnqueueMany(ctx, []runner.Args{Reindex{"a"}, Reindex{""}, Reindex{"b"}})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range ids {
		j, err := r.Wait(ctx, id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(j.State)
	}
	// Output:
	// succeeded
	// failed
	// succeeded
}
