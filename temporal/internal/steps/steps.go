// Package steps names the steps of a job between PostgreSQL and Temporal. Tests with the build tag failpoints kill a pod at each of them; see
// internal/failpoint.
package steps

// The steps, in order.
const (
	Claimed  = "forward.claimed" // the forwarder has claimed a job; its workflow has not started
	Started  = "forward.started" // Temporal has accepted the workflow
	Begun    = "run.begun"       // the start of the run is recorded in PostgreSQL
	Calling  = "run.calling"     // the handler is about to be called
	Returned = "run.returned"    // the handler has returned; Temporal does not have its verdict
	Settling = "run.settling"    // the verdict is about to be written to PostgreSQL
	Written  = "run.written"     // the verdict is in PostgreSQL; Temporal does not know
)

// All lists the steps.
var All = []string{Claimed, Started, Begun, Calling, Returned, Settling, Written}
