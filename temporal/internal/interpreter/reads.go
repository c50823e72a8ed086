package interpreter

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Read is the name of the update with which a handler without a connection to PostgreSQL reads from it, and of the local activity that reads.
const Read = "trapeze read"

// serveReads answers the reads of the handler. Each answer is an event of the workflow.
func serveReads(ctx workflow.Context, in wire.Run) error {
	return workflow.SetUpdateHandler(ctx, Read, func(ctx workflow.Context, r wire.Read) (a wire.Answer, err error) {
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
			ScheduleToCloseTimeout: time.Minute,
			RetryPolicy:            &temporal.RetryPolicy{InitialInterval: 50 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second},
		})
		in := in
		in.Args, in.Checkpoint = nil, nil
		err = workflow.ExecuteLocalActivity(ctx, Read, in, r).Get(ctx, &a)
		return a, err
	})
}
