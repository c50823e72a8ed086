// Package feed tells those who watch jobs, pipelines or everything what happens, while it happens.
//
//	job_events ──tail──▶ bus ──▶ streams, one a client
//	     └──────────pages of what came before──▶
//
// However many watch, one goroutine of the pod, the tail, reads what is new: one statement for all jobs and pipelines that are
// watched, and one for everything if that is. When nobody watches it does not exist. A stream first reads pages of what was written
// before it came, then takes over what the tail hands out; a client holds no connection to the database.
//
// A job's events are numbered, and a pipeline's are told apart by the transactions that wrote them (view.Seen), so both are told
// at once whatever goes on elsewhere. The feed of everything is in the order of transaction ids, and stays below the first
// transaction that is still open. Every event carries a cursor from which any pod goes on, without a gap or a repeat.
package feed
