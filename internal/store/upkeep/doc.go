// Package upkeep holds the statements of maintenance: retention, pruning, partitions, reconciliation, vacuum, and overdue jobs. They run
// one batch at a time, on any pod. Each function takes the [store.Store] that it runs on.
package upkeep
