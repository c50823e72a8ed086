// Package feed delivers the events of jobs, of pipelines or of everything to clients, as they happen.
//
//	job_events ──tail──▶ bus ──▶ streams, one per client
//	     └──────────backlog in pages────────▶
//
// Regardless of the number of clients, one goroutine of the pod, the tail, reads new events: one statement for all watched jobs and
// pipelines, and one for the feed of everything if a client watches it. It runs only while there are clients. A stream first reads
// the backlog in pages, then receives the events from the tail. A client holds no connection to the database.
//
// A job's events are numbered, and a pipeline's are distinguished by the transactions that wrote them (view.Seen). Both are
// therefore delivered at once, regardless of other transactions. The feed of everything is in the order of transaction ids, and
// stays below the first transaction that is still open. Every event carries a cursor from which any pod continues, without a gap or
// a repeat.
package feed
