package temporal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal/internal/activities"
	"github.com/trapeze-run/trapeze/temporal/internal/forwarder"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Work runs the handlers of r for Temporal lanes, without a connection to PostgreSQL, until ctx is cancelled. It returns an error if
// Temporal has refused its polls for minutes, for example because the namespace was deleted. r must come from [runner.NewRemote]. Any
// number of these workers can run beside a few pods, which forward jobs and write their ends (see Options.HandlersElsewhere). The pods must
// have registered the same handlers with the same options. slots is the maximum number of jobs in each lane that the worker runs
// concurrently.
//
// A handler's reads from other jobs, such as the result of the previous step, go through its run's workflow.
func Work(ctx context.Context, r *runner.Runner, o Options, slots int, lanes ...string) error {
	o, err := o.withDefaults()
	if err != nil {
		return fmt.Errorf("temporal options: %w", err)
	}
	if slots < 1 || len(lanes) == 0 {
		return fmt.Errorf("work for temporal: %d slots and %d lanes, want at least 1", slots, len(lanes))
	}
	p := inside.Of(r).Pod
	p.Handle(r.Kinds())
	handlers := &activities.Handlers{Engine: p.Engine, Client: o.Client, PodID: r.PodID(), Reader: func(ctx context.Context, _ wire.Run) work.Writer {
		run := activity.GetInfo(ctx).WorkflowExecution
		return activities.Remote(o.Client, run.ID, run.RunID)
	}}
	broken := make(chan error, 2*len(lanes))
	var workers []worker.Worker
	defer func() {
		var stopping sync.WaitGroup
		for _, w := range workers {
			stopping.Go(w.Stop)
		}
		stopping.Wait()
	}()
	for _, lane := range lanes {
		w := worker.New(o.Client, forwarder.Names{Prefix: o.Prefix}.Queue(lane), worker.Options{
			Identity:                           p.Opts.Name + " " + r.PodID(),
			DisableWorkflowWorker:              true,
			MaxConcurrentActivityExecutionSize: slots,
			WorkerStopTimeout:                  p.Opts.ShutdownGrace + 5*time.Second,
			DisableRegistrationAliasing:        true,
			OnFatalError: func(err error) {
				select {
				case broken <- fmt.Errorf("work for temporal in lane %s: %w", lane, err):
				default:
				}
			},
		})
		handlers.Register(w)
		if err := w.Start(); err != nil {
			return fmt.Errorf("work for temporal in lane %s: %w", lane, err)
		}
		workers = append(workers, w)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-broken:
		return err
	}
}
