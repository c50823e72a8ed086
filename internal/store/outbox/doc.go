// Package outbox hands the jobs of a lane to the lane's engine, and records their results. Here, an engine is a system other than Trapeze's
// pods, such as Temporal. A forwarder starts a run in the engine for each job, and the run reports the end of its job. Any number of
// forwarders can share the work, and any of them can die at any point.
//
// In the database, the engine holds the claim, as a pod would:
//
//	          Due             Started             End
//	pending ───────▶ running ─────────▶ running ───────▶ done
//	   ▲   new epoch,   │    run recorded   │
//	   │   in outbox    │                   │
//	   └────────────────┴──────Again────────┘   the engine has lost the run
//
// Each claim starts a new epoch of its job, whose attempts have higher fences than all earlier claims of the job (see [Fence]). A run must
// call Started before it calls a handler. Started succeeds for only one run per epoch. A second run for the same epoch therefore executes
// nothing, even if the engine has already forgotten the first one. The end of a run is accepted only if the job's row is still in the run's
// epoch.
//
// Waiting for a time, for approval or for a subject happens in PostgreSQL, so Due returns only jobs that can start immediately.
package outbox
