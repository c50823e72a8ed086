// Package view contains the read-only statements. Operators and the API use them to read jobs, pipelines, trees, events, the fleet, the
// reasons why a job is waiting, and the data for doctor's checks. Other packages use them to read the outcomes of awaited jobs, the
// children for a join, and new events for the feed. [Seen] and [Position] describe the position of a feed reader.
//
// Lists use the most selective index, and are read in pages of limited size and time. Each function takes the [store.Store] that it uses.
package view
