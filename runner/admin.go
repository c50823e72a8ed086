package runner

import (
	"cmp"

	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/job"
)

// Admin reads and changes what operators are responsible for: jobs, pipelines, lanes, pods, the queue state, schedules and retention. The
// CLI, the API and a host's own tools use it. Every change is written to the audit log under the name of its actor. Get one from
// [Runner.Admin]; its methods are safe for concurrent use, and need no running pod.
type Admin struct{ pod *pod.Pod }

// named returns the name under which the audit log has an operator.
func named(actor string) string {
	return job.Storable(cmp.Or(actor, "operator"), 200)
}
