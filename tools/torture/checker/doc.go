// Package checker judges a torture run solely by its records. It does not know how the run was produced, and it is deterministic: the same
// folder always yields the same verdict.
//
//	run ─▶ view (indexed once) ─▶ one function per invariant ─▶ findings ─▶ timelines of the jobs in violations
//
// A check relies only on what the records prove. An event carries the start time of its transaction, so it was committed at that time or
// later. A ledger line arrives after the event that it reports. A sample is taken after the time that it carries. Timing is checked, and
// counted as checked, only while nothing disturbed the pod or the database, because a pod that was frozen by a fault may be slow. A check
// that examined nothing proves nothing (see [Vacuous]).
package checker
