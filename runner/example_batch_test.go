package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

type Reading struct {
	Sensor string
	Value  float64
}

func (Reading) Kind() string { return "reading" }

// A batch function handles up to a hundred jobs in one call. One job's failure does not affect the others.
func ExampleHandleBatch() {
	ctx, r, stop := serve(func(r *runner.Runner) {
		runner.HandleBatch(r, func(ctx context.Context, jobs []*runner.Job[Reading]) []runner.BatchResult {
			results := make([]runner.BatchResult, len(jobs))
			for i, j := range jobs {
				if j.Args.Sensor == "" {
					results[i].Err = runner.Permanent(errors.New("a reading without a sensor"))
				} else {
					results[i].Outcome = runner.Done(j.Args.Value)
				}
			}
			return results
		}, runner.BatchSize(100), runner.BatchWait(20*time.Millisecond))
	})
	defer stop()
	ids, err := r.EnqueueMany(ctx, []runner.Args{Reading{"roof", 21.5}, Reading{"", 4}, Reading{"cellar", 12}})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range ids {
		j, err := r.Wait(ctx, id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(j.State, string(j.Result))
	}
	// Output:
	// succeeded 21.5
	// failed
	// succeeded 12
}
