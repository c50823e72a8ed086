package runner_test

import (
	"context"
	"fmt"
	"log"

	"github.com/trapeze-run/trapeze/runner"
)

type Scan struct{ Rows int }

func (Scan) Kind() string { return "scan" }

// A handler can report progress and emit events as often as it likes; Trapeze writes them to the database only a few times per second.
func ExampleJob_progress() {
	ctx, r, stop := serve(func(r *runner.Runner) {
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Scan]) (*runner.Outcome, error) {
			for row := range j.Args.Rows {
				if row%400 == 399 {
					if err := j.Emit(ctx, "scan.bad_row", "warn", fmt.Sprintf("row %d has no date", row), nil); err != nil {
						return nil, err
					}
				}
				j.Progress(int64(row+1), int64(j.Args.Rows))
			}
			return nil, nil
		})
	})
	defer stop()
	made, err := r.Enqueue(ctx, Scan{Rows: 1000})
	if err != nil {
		log.Fatal(err)
	}
	j, err := r.Wait(ctx, made.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(*j.Progress.Done, "of", *j.Progress.Total)
	events, err := r.Admin("").Events(ctx, made.ID, 0, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range events {
		if e.Actor == "handler" {
			fmt.Println(e.Level, e.Event, *e.Message)
		}
	}
	// Output:
	// 1000 of 1000
	// warn scan.bad_row row 399 has no date
	// warn scan.bad_row row 799 has no date
}
