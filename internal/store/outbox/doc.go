// Package outbox hands the jobs of a lane to the engine that the lane names, and takes their results back. Here, an engine is a system other
// than Trapeze's pods, such as Temporal. A forwarder starts a run of the engine for each job, and the run reports the end of its job. Any
// number of forwarders can share the work, and each of them can die at any point.
//
// In the database, the engine holds the claim, as a pod would:
//
//	          Due             Started             End
//	pending ───────▶ running ─────────▶ running ───────▶ done
//	   ▲   new epoch,   │    run recorded   │
//	   │   in outbox    │                   │
//	   └────────────────┴──────Again────────┘   the engine has lost the run
//
// Each claim raises the epoch of its job, and the fences of its attempts are higher than all earlier fences of the job; see [Fence]. A run
// must call Started before it calls a handler. Started succeeds for only one run per epoch. A second run that was started for the same
// epoch therefore executes nothing, even if the engine has already forgotten the first one. The end of a run is accepted only for the epoch
// that the row holds.
//
// A job waits for a time, for approval or for its subject in PostgreSQL, so Due returns only jobs that can start immediately.
package outbox
