package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type Charge struct{ Cents int }

func (Charge) Kind() string { return "charge" }

type Refund struct{ Payment string }

func (Refund) Kind() string { return "refund" }

type Reserve struct{ Item string }

func (Reserve) Kind() string { return "reserve" }

type Release struct{ Item string }

func (Release) Kind() string { return "release" }

type Ship struct{ To string }

func (Ship) Kind() string { return "ship" }

// In a saga, each step that succeeds names the job that undoes it. If a later step fails or the pipeline is cancelled, these jobs run in
// reverse order, as a separate pipeline.
func ExampleOutcome_OnFailureOrCancel() {
	undone := make(chan struct{})
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Charge]) (*runner.Outcome, error) {
			fmt.Println("charge", j.Args.Cents)
			return runner.Done(nil).OnFailureOrCancel(Refund{Payment: "p-1"}), nil
		})
		runner.Handle(r, func(_ context.Context, j *runner.Job[Reserve]) (*runner.Outcome, error) {
			fmt.Println("reserve", j.Args.Item)
			return runner.Done(nil).OnFailureOrCancel(Release{Item: j.Args.Item}), nil
		})
		runner.Handle(r, func(_ context.Context, _ *runner.Job[Ship]) (*runner.Outcome, error) {
			return nil, job.Permanent(errors.New("no carrier goes there"))
		})
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Release]) (*runner.Outcome, error) {
			f, err := j.Failure(ctx)
			fmt.Printf("release %s, for %s failed: %s\n", j.Args.Item, f.Kind, f.Error)
			return nil, err
		})
		runner.Handle(r, func(_ context.Context, j *runner.Job[Refund]) (*runner.Outcome, error) {
			fmt.Println("refund", j.Args.Payment)
			close(undone)
			return nil, nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		order, err := r.Enqueue(ctx, runner.Chain(Charge{4200}, Reserve{"lamp"}, Ship{"Thule"}), runner.Subject("order 7"))
		if err != nil {
			log.Fatal(err)
		}
		<-undone
		await(ctx, r, order.PipelineID)
	})
	// Output:
	// charge 4200
	// reserve lamp
	// release lamp, for ship failed: no carrier goes there
	// refund p-1
	// failed
}

type Import struct{ File string }

func (Import) Kind() string { return "import" }

type Alert struct{ Channel string }

func (Alert) Kind() string { return "alert" }

// When a job of this kind fails, another job sends a notification.
func ExampleOnFailure() {
	told := make(chan struct{})
	during(func(r *runner.Runner) {
		runner.Handle(r, func(context.Context, *runner.Job[Import]) (*runner.Outcome, error) {
			return nil, job.Permanent(errors.New("line 3 has no date"))
		}, runner.OnFailure(Alert{Channel: "imports"}))
		runner.Handle(r, func(ctx context.Context, j *runner.Job[Alert]) (*runner.Outcome, error) {
			f, err := j.Failure(ctx)
			if err != nil {
				return nil, err
			}
			var failed Import
			if err := f.Args(&failed); err != nil {
				return nil, err
			}
			fmt.Printf("to %s: %s: %s\n", j.Args.Channel, failed.File, f.Error)
			close(told)
			return nil, nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		if _, err := r.Enqueue(ctx, Import{"june.csv"}); err != nil {
			log.Fatal(err)
		}
		<-told
	})
	// Output: to imports: june.csv: line 3 has no date
}
