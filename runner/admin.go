package runner

import (
	"cmp"
	"context"

	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/job"
)

// Admin reads and changes everything that operators manage: jobs, pipelines, lanes, pods, the queue state, schedules and retention. The
// CLI, the API and a host's own tools use it. Every change is written to the audit log under the name of its actor. [Runner.Admin] returns
// one. Its methods are safe for concurrent use and need no running pod.
//
// Each change is one transaction with its audit entry and its event. It then notifies the pods, so that it takes effect at once. If a
// notification is lost, the change takes effect with the next heartbeat. Changes of lanes, pods, schedules and the queue state never affect
// running jobs. [job.ErrOutcomeUnknown] means that the connection was lost before the reply. Repeating the call is safe and returns the
// outcome.
type Admin struct{ pod *pod.Pod }

// finishCommand returns the error of a command. After a success it makes this pod apply the command before it returns, without waiting for a
// notification. A job that is submitted here afterwards is subject to it.
func (a Admin) finishCommand(ctx context.Context, err error) error {
	if err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.Follow(ctx)
	return nil
}

// named returns the name of an operator as stored in the audit log.
func named(actor string) string {
	return job.Storable(cmp.Or(actor, "operator"), 200)
}
