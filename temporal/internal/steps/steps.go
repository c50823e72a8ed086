// Package steps names the steps that a job takes between PostgreSQL and Temporal. Tests with the build tag failpoints kill a pod at each
// step (see internal/failpoint).
package steps

// The steps, in order.
const (
	Claimed  = "forward.claimed" // the forwarder has claimed a job but not started its workflow
	Started  = "forward.started" // Temporal has accepted the workflow
	Begun    = "run.begun"       // PostgreSQL has recorded the start of the run
	Calling  = "run.calling"     // the handler is about to be called
	Returned = "run.returned"    // the handler has returned, but Temporal has not received the verdict yet
	Settling = "run.settling"    // the verdict is about to be written to PostgreSQL
	Written  = "run.written"     // the verdict is in PostgreSQL, but Temporal does not know it yet
)

// All lists the steps.
var All = []string{Claimed, Started, Begun, Calling, Returned, Settling, Written}
