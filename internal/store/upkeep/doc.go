// Package upkeep holds the statements of maintenance: retention, pruning, partitions, reconciliation, vacuum, and jobs that are overdue. They run a
// batch at a time, on any pod. A function takes the [store.Store] that it runs on.
package upkeep
