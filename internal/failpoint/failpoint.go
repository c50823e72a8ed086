// Package failpoint defines points at which a process can be made to crash, freeze or fail, so that a test can inject a fault exactly
// between two statements. Without the build tag failpoints, Hit does nothing, and Set, Passed and ErrInjected do not exist.
//
// With the tag, TRAPEZE_FAILPOINTS contains a list such as "finish.committed=kill@3,heartbeat.send=delay:5s". An entry consists of a name,
// an action, and the number of the pass through the point that triggers the action: 1 by default, and 0 for every pass. kill sends SIGKILL
// to the process, and stop sends SIGSTOP. exit:N calls os.Exit, delay:D waits, and error returns an error. Set takes such a list from
// within the process.
package failpoint

// The failpoints that a job passes, in order, followed by the others.
const (
	EnqueueDone     = "enqueue.done"     // after the commit of an enqueue, before the job starts
	ClaimSend       = "claim.send"       // before a claim is sent
	ClaimCommitted  = "claim.committed"  // after the commit of a claim, before any handler starts
	Launch          = "launch"           // before a handler is called
	Handled         = "handled"          // after a handler has returned, before anything is written
	FlushSend       = "flush.send"       // before a flush statement is sent
	FinishCommitted = "finish.committed" // after the commit of a finish, before the next step starts
	Admit           = "admit"            // before the next jobs of subjects are admitted, except by a poll
	AdmitMissed     = "admit.missed"     // before a poll admits the jobs that were missed
	WaitingEnded    = "waiting.ended"    // after a waiting job has ended, before the next step starts
	InTxCommit      = "intx.commit"      // before the commit of a finish that includes the handler's writes
	CheckpointDone  = "checkpoint.done"  // after the commit of a handler's batch and its checkpoint
	HeartbeatSend   = "heartbeat.send"   // before a heartbeat is sent
	RecoverPage     = "recover.page"     // after one page of a recovery
	FireCommit      = "fire.commit"      // before the commit that stores schedule occurrences and the jobs submitted for them
)
