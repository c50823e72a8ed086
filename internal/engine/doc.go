// Package engine runs the jobs of one identity: a pod, or the session of a remote worker on a pod. It claims jobs for free slots, runs their
// handlers, writes their ends together with the next step, starts that step in the same process when a slot is free, and takes back jobs that
// a lost reply or a dead pod left behind. It hides batches, retries, the reading back of lost replies, and the order of locks and commits.
//
// The pod and the sessions of remote workers call it: [New], [Engine.FirstBeat] with the first heartbeat, [Engine.Live] until they stop.
// Each implements [member]. Package runner submits jobs through the pod. A remote worker's process, without a database, uses [Perform] and
// [RemoteKinds] for its handlers.
//
// Read claim.go, execute.go, finish.go, handoff.go and recover.go, in this order: they are the story of a job. The other files have one
// mechanism each: fanout.go and fanout_settle.go, park.go (retries, hand-backs), flusher.go and flush.go (group commit of ends),
// flush_readback.go (ends whose reply was lost), finish_in_tx.go and finish_group.go (ends with writes of the handler), writes.go and
// lease_tx.go (what handlers write before that), orphans.go and missing.go (differences between the table and Runs), attempts.go (another
// attempt or an end), cancel.go, claim_ahead.go and ahead.go (claims that wait for a slot), backlog.go, due.go and unknown.go (reasons for
// a claim or a search), slots.go (grants and marks around a claim), runs.go (claims in hand), watch.go (handlers that do not return),
// heartbeat.go, live.go, submit.go. What all share is in identity.go.
//
// Each part knows only parts before it in this list: Identity, submitter, fanOuts, flusher, leaseTx, groups, finisher, executor, claimer,
// sweeper, Engine. It reaches a later one only by a function that New hands to it.
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
