// Package upkeep holds the maintenance statements for retention, pruning, partitions, reconciliation, vacuum, and overdue jobs. They work
// in batches, and any pod can run them. Each function takes the [store.Store] that it runs on.
package upkeep
