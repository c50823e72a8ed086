package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/trapeze-run/trapeze/runner"
)

type Crawl struct{ Pages int }

func (Crawl) Kind() string { return "crawl" }

// A run continues from the previous run's checkpoint on any pod, whether that run ended with an error, a crash or a shutdown.
func ExampleJob_checkpoint() {
	ctx, r, stop := serve(func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Crawl]) (*runner.Outcome, error) {
			var done int
			if _, err := j.LastCheckpoint(&done); err != nil {
				return nil, err
			}
			fmt.Println("attempt", j.Attempt(), "begins after page", done)
			for page := done + 1; page <= j.Args.Pages; page++ {
				if page == 3 && j.Attempt() == 1 {
					return nil, errors.New("the server hung up")
				}
				if err := j.Checkpoint(ctx, page); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}, runner.Retry(3, runner.Backoff{Base: 10 * time.Millisecond}))
	})
	defer stop()
	made, err := r.Enqueue(ctx, Crawl{Pages: 4})
	if err != nil {
		log.Fatal(err)
	}
	j, err := r.Wait(ctx, made.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(j.State)
	// Output:
	// attempt 1 begins after page 0
	// attempt 2 begins after page 2
	// succeeded
}
