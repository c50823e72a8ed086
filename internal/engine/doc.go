// Package engine runs one identity's jobs: a pod, or a remote worker's session on a pod. It runs their handlers, and writes each outcome
// together with the next step. If a slot is free, that step starts in the same process. The package hides batching, retries, read-backs
// after lost replies, and the order of locks and commits from its callers. Package poller finds the jobs.
//
// Pods and remote workers' sessions use the package. Each implements [member], calls [New], passes the first heartbeat to
// [Engine.FirstBeat], and then calls [Engine.Live], which runs until the pod or session stops. Package runner submits jobs through the pod.
// A remote worker's process, which has no database, uses [Perform] and [RemoteKinds] for its handlers.
//
// Package store lists the ideas behind the claim and its neighbours, and package poller finds the work. To follow a job's life, read claim.go of package poller, then launch.go, execute.go, finish.go and handoff.go, and recover.go of package
// poller, in this order. Each of the other files implements one mechanism: fanout.go and fanout_settle.go, park.go (retries and
// hand-backs), flusher.go (group commit of completions, and those whose reply was lost),
// finish_group.go (completions with writes of the handler), writes.go and claim_tx.go (earlier writes of the handler),
// missing_claims.go (handlers whose claim is missing from the table), attempts.go (retry or fail), cancel.go, ahead.go (claims that wait for
// a slot), runs.go (current claims), watchdog.go (handlers that do not return), external_runs.go (handlers that ran on another engine),
// heartbeat.go (also stacks and priorities that operators request), lifecycle.go, submit.go. shared.go holds the state that
// all of them share, and package identity the part of it that the poller needs, too.
//
// The parts form layers, in this order: shared, flusher, claimTx, groups, submitter, fanOuts, executor, Engine. Each part depends only on
// earlier ones. Two call later ones, through functions that New passes to them: the submitter starts a job, and a flusher continues after
// completions. The poller reaches the executor through [poller.Engine].
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
