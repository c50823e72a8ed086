// Package checker judges a torture run by its records alone. It knows nothing of how the run was made, and is pure: one
// folder always gets one verdict.
//
//	run ─▶ view (indexed once) ─▶ one function an invariant ─▶ findings ─▶ the timeline of whoever is accused
//
// An invariant is judged by what cannot be explained away. The moment of an event is when its transaction began, so an
// event may have been committed later than it says and never earlier; a line of the ledger arrives after whatever led to
// it; a sample is taken after its moment. What can only be judged by the clock is judged where nothing disturbed the pod
// or the database meanwhile, and is left out of the count elsewhere: whoever is slow because somebody froze him is
// innocent. A finding that checked nothing proves nothing; see [Vacuous].
package checker
