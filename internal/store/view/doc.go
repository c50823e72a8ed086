// Package view holds the statements that only read. For people and the API: jobs, pipelines, trees, events, the fleet, why a job waits, and the
// checks of doctor. For other packages: ends that a caller waits for, children that a join reads, and new events for the feed ([Seen] and
// [Position] are where a reader stands). Lists are read by the index that leads to their rows soonest, in pages of bounded size and time. A
// function takes the [store.Store] that it runs on.
package view
