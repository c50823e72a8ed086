// Package mutant names mistakes that a build can be made to contain, so that the torture can be tested: a checker that has
// never caught anything proves nothing. Without the build tag mutants every call is the constant false, and the compiler
// removes what it guards.
//
// With it, TRAPEZE_MUTANT holds the name of the one mistake that the process makes; empty is none, and a name that is not
// in the list ends the process with exit code 2. The same can be chosen in the process with Set. A mistake in a statement
// is made by the package that holds the statement, from a table of texts to be replaced: a text that is not found any more
// ends the process, so that no mutant becomes harmless in silence when a statement changes.
package mutant

// The mutants. Each is a mistake that somebody has made, or nearly made, in a system like this one.
const (
	NoFence             = "no_fence"               // a worker's writes match any running job of that id, whoever runs it
	FenceWithoutPod     = "fence_without_pod"      // a worker's writes compare the fence alone, which a recovery leaves as it is
	DoubleChain         = "double_chain"           // when the reply to a finish was lost, its next step is submitted again
	LostChild           = "lost_child"             // the next step is inserted after the commit of the finish, not in it
	EventGap            = "event_gap"              // a recovery numbers its event and does not write it
	SlotsExceeded       = "slots_exceeded"         // what is born running reserves its slot without asking whether one is free
	SubjectMutexOff     = "subject_mutex_off"      // who loses the race for a subject runs all the same
	RecoveryOfTheLiving = "recovery_of_the_living" // the end of a lease is read as its beginning: who beats is called lapsed
	ZombieHeartbeat     = "zombie_heartbeat"       // a heartbeat opens the row of a pod that was declared dead
	BlindCommitRetry    = "blind_commit_retry"     // a commit whose reply was lost is sent again without asking what came of it
	NoListenRepoll      = "no_listen_repoll"       // notifications are trusted: no poll, and no look after a reconnection
	GrantsUncounted     = "grants_uncounted"       // slots of a lane are granted to each pod as if the others held none
	LaunchBeforeCommit  = "launch_before_commit"   // the next step's handler starts while the finish is on its way
	DoubleCount         = "double_count"           // the end of a branch is counted twice, so that a join comes too early
	BlindFire           = "blind_fire"             // a pod submits the jobs of fires that it found due, whoever decided them
	LostFires           = "lost_fires"             // of several fires that are due at once only the latest is decided
	UnheardLease        = "unheard_lease"          // a remote worker's lease is renewed by its pod, whether or not the worker is heard of
	StreamLease         = "stream_lease"           // what a remote worker runs is given back when its stream ends, as if that were its lease
	StaleReport         = "stale_report"           // a remote worker's report ends the job that it names, whoever runs that now
)

// Names lists all mutants.
func Names() []string {
	return []string{NoFence, FenceWithoutPod, DoubleChain, LostChild, EventGap, SlotsExceeded, SubjectMutexOff,
		RecoveryOfTheLiving, ZombieHeartbeat, BlindCommitRetry, NoListenRepoll, GrantsUncounted, LaunchBeforeCommit, DoubleCount,
		BlindFire, LostFires, UnheardLease, StreamLease, StaleReport}
}
