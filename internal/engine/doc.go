// Package engine runs one identity's jobs: a pod, or a remote worker's session on a pod. It claims jobs for free slots, runs their
// handlers, and writes each outcome together with the next step. If a slot is free, that step starts in the same process. The package also
// recovers jobs after a lost reply or a pod failure, and hides batching, retries, read-backs after lost replies, and the order of locks and
// commits from its callers.
//
// Pods and remote workers' sessions use the package. Each implements [member], calls [New], passes the first heartbeat to
// [Engine.FirstBeat], and then calls [Engine.Live], which runs until the pod or session stops. Package runner submits jobs through the pod.
// A remote worker's process, which has no database, uses [Perform] and [RemoteKinds] for its handlers.
//
// To follow a job's life, read claim.go, execute.go, finish.go, handoff.go and recover.go, in this order. Each of the other files
// implements one mechanism: fanout.go and fanout_settle.go, park.go (retries and hand-backs), flusher.go and flush.go (group commit of
// completions), finish_readback.go (completions whose reply was lost), finish_in_tx.go and finish_group.go (completions with writes of the
// handler), writes.go and claim_tx.go (earlier writes of the handler), claims_in_doubt.go and orphaned_claims.go (claims whose reply was
// lost), missing_claims.go (handlers whose claim is missing from the table), attempts.go (retry or fail), cancel.go, claim_ahead.go and
// ahead.go (claims that wait for a slot), backlog.go and due.go (reasons for a claim or a search), slots.go (slot grants and low-water
// marks around a claim), runs.go (current claims), watchdog.go (handlers that do not return), external_runs.go (handlers that ran on
// another engine), claim_requests.go (stacks and priorities that operators request), heartbeat.go, lifecycle.go, submit.go. identity.go
// holds the state that all of them share.
//
// The parts form layers, in this order: Identity, submitter, fanOuts, flusher, claimTx, groups, finisher, executor, claimer, sweeper,
// Engine. Each part depends only on earlier ones, and reaches later ones only through functions that New passes to it.
//
//	insert ───────── no free slot ───────▶ pending ◀─── due ─── parked
//	   │                                    │   ▲                  ▲
//	   │ started on insert            claim │   │ hand-back,       │ retry, run later
//	   ▼                                    ▼   │ recovery         │
//	running: in Runs, with a slot and a lease ──┴──────────────────┘
//	   │            │
//	   │ end        │ fan-out
//	   │            ▼
//	   │         waiting ── settled after the last branch ──┐
//	   ▼                                                    ▼
//	succeeded, failed, cancelled ── in the same commit ──▶ next step: running here, or pending
package engine
