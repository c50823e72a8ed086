// Package feed delivers events to clients as they happen: the events of a job, of a pipeline, or all events.
//
//	job_events ──tail──▶ bus ──▶ streams, one per client
//	     └──────────backlog in pages────────▶
//
// Regardless of the number of clients, a single goroutine of the pod, the tail, reads new events. It uses one statement for all watched
// jobs and pipelines, and another for the feed of all events if a client watches it. It runs only while there are clients. A stream first
// reads the backlog in pages, and then receives events from the tail. Clients do not hold database connections.
//
// A job's events are numbered, and a pipeline's events are told apart by the transactions that wrote them (view.Seen). Both are therefore
// delivered immediately, regardless of other transactions. The feed of all events follows the order of transaction IDs, and stops before
// the oldest open transaction. Every event carries a cursor from which any pod can continue without gaps or repetitions.
package feed
