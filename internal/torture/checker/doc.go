// Package checker judges a torture run from its records alone. It does not know how the run was made, and it is deterministic: the same
// folder always gets the same verdict.
//
//	run ─▶ view (indexed once) ─▶ one function per invariant ─▶ findings ─▶ timelines of the jobs in violations
//
// A check relies only on what the records prove. An event carries the time at which its transaction began, so the event may have been
// committed later but never earlier. A ledger line arrives after the event that it reports. A sample is taken after the time it carries.
// Timing is checked only where nothing disturbed the pod or the database. Timing that was disturbed is not counted, because a pod that was
// frozen by a fault is allowed to be slow. A finding that checked nothing proves nothing; see [Vacuous].
package checker
