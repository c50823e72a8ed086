// Package fleet holds the rules that a pod applies to other pods without asking them. It does no I/O.
//
// A [Lease] tracks how long the pod may treat its jobs as its own, and whether the pod may declare other pods dead. It uses two clocks: the
// pod's clock for the pod's lease, and the database's clock for the leases of other pods. Heartbeats report to it.
//
// [Turns] decide which pods hear a notification, and which of them claim when. PostgreSQL delivers a notification to every session that
// listens on its channel. If every pod listened and claimed, a fleet of fifty would send fifty claims for each job. Instead, each pod knows
// its position among the pods with the same kinds, and each notification carries a seed from which the pods compute whose turn it is:
//
//	new jobs      heard by the front, eight pods   two claim at once, the others a little later
//	 └─ some left behind by the first of the two?
//	jobs left     heard by all pods                eight claim at once, the others a little later
//
// The later claims find jobs that the first pods could not run, for example because those pods have just died. Each pod sends fewer of them in
// a larger fleet. Notifications are only hints: if one is lost, the next poll finds the job.
package fleet
