package interpreter

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Read is the name of the update that a handler without a connection to PostgreSQL sends to read from it, and of the local activity that
// performs the read.
const Read = "trapeze read"

// maxReads and maxReadBytes limit the replies to a run's reads, because each reply is in the run's history twice: as the result of the
// local activity and as the result of the update. A Temporal server terminates runs whose history exceeds 50 MB, and rejects more than
// 2,000 updates per run.
const (
	maxReads     = 1000
	maxReadBytes = 15_000_000
)

// TooMuch is the type of the error that rejects further reads.
const TooMuch = "too_much"

// serveReads replies to the handler's reads.
func serveReads(ctx workflow.Context, in wire.Run) error {
	reads, bytes := 0, 0
	in = in.Slim()
	answer := func(ctx workflow.Context, r wire.Read) (a wire.Answer, err error) {
		reads++
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
			ScheduleToCloseTimeout: time.Minute,
			RetryPolicy:            &temporal.RetryPolicy{InitialInterval: 50 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 5 * time.Second},
		})
		err = workflow.ExecuteLocalActivity(ctx, Read, in, r).Get(ctx, &a)
		bytes += a.Bytes()
		return a, err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, Read, answer, workflow.UpdateHandlerOptions{Validator: func(wire.Read) error {
		if reads < maxReads && bytes < maxReadBytes {
			return nil
		}
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("a worker without a connection to PostgreSQL has read %d times, %d bytes, of other jobs in one run, "+
			"and may read %d times and about %d bytes: read less, or run the handler on pods", reads, bytes, maxReads, maxReadBytes), TooMuch, nil)
	}})
}
