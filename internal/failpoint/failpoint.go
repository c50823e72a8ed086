// Package failpoint names the points at which a process can be made to die, freeze or fail, so that a test can place a
// fault exactly between two statements. Without the build tag failpoints, every call is a no-op.
//
// With it, TRAPEZE_FAILPOINTS holds a list such as "finish.committed=kill@3,heartbeat.send=delay:5s". An entry is a
// name, an action, and the number of the pass through the point that triggers it (default 1). kill sends SIGKILL to the
// process, stop SIGSTOP; exit:N calls os.Exit, delay:D waits, and error returns an error. Set does the same from within
// the process.
package failpoint

// The points, in the order in which a job passes them.
const (
	ClaimSend       = "claim.send"       // before a claim is sent
	ClaimCommitted  = "claim.committed"  // after a claim's commit, before any launch
	Launch          = "launch"           // before a handler is called
	Handled         = "handled"          // after a handler returned, before anything is written
	FlushSend       = "flush.send"       // in a flush, before it is sent
	FinishCommitted = "finish.committed" // after the commit of a finish, before its next step is launched
	WaitingEnded    = "waiting.ended"    // a waiting job has ended, before the next step runs
	InTxCommit      = "intx.commit"      // in a finish with the user's writes, before its commit
	CheckpointDone  = "checkpoint.done"  // after a batch of the handler and its checkpoint were committed
	HeartbeatSend   = "heartbeat.send"   // before a heartbeat is sent
	RecoverPage     = "recover.page"     // after a page of a recovery
	EnqueueDone     = "enqueue.done"     // after the commit of an enqueue, before its launch
	FireSubmitted   = "fire.submitted"   // occurrences are decided and their jobs submitted, before the commit
)
