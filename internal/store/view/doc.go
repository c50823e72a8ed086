// Package view contains the read-only statements. For operators and the API, they read jobs, pipelines, trees, events, the fleet, the
// reasons why a job is waiting, and the data for doctor's checks. For other packages, they read the outcomes of jobs that callers are
// waiting for, children for a join, and new events for the feed. [Seen] and [Position] describe the position of a feed reader.
//
// Lists use the most selective index, and are read in pages of limited size and time. Each function takes the [store.Store] that it uses.
package view
