package runner

import (
	"cmp"
	"context"

	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/job"
)

// Admin reads and changes everything that operators are responsible for: jobs, pipelines, lanes, pods, the queue state, schedules and retention. The
// CLI, the API and a host's own tools use it. Every change is written to the audit log under the name of its actor. Get one from
// [Runner.Admin]; its methods are safe for concurrent use, and need no running pod.
//
// Each change is one transaction with its row in the audit log and its event, and notifies the pods, so that it is in force at once; where a
// notification is lost, with the next heartbeat. Changes of lanes, pods, schedules and the queue state never touch running jobs.
// An error that is [job.ErrOutcomeUnknown] means that the connection was lost before the answer: asking again is safe, and gives the answer.
type Admin struct{ pod *pod.Pod }

// operated is the error of a command. Without one, this pod follows the command before the answer, without waiting for a notification:
// a job that is submitted here afterwards meets it.
func (a Admin) operated(ctx context.Context, err error) error {
	if err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.Follow(ctx)
	return nil
}

// named returns the name under which the audit log has an operator.
func named(actor string) string {
	return job.Storable(cmp.Or(actor, "operator"), 200)
}
