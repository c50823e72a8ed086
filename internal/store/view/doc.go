// Package view holds the statements that only read. For people and the API they read jobs, pipelines, trees, events, the fleet, why a job
// waits, and the checks of doctor. For other packages they read ends that a caller waits for, children that a join reads, and new events
// for the feed ([Seen] and [Position] are the positions of a reader). Lists are read by the most selective index, in pages of limited size
// and time. Each function takes the [store.Store] that it runs on.
package view
