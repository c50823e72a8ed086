// Package upkeep holds the maintenance statements for retention, pruning, partitions, reconciliation, statistics, vacuum, and overdue jobs, and
// the record of which pod last ran which task. They work in batches, and any pod can run them. Each function takes the [store.Store] that it runs on.
package upkeep
