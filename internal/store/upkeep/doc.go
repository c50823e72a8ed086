// Package upkeep holds the maintenance statements for retention, pruning, partitions, reconciliation, statistics, vacuuming and overdue
// jobs, and records which pod last ran each task. The statements work in batches, and any pod can run them. Each function takes the
// [store.Store] that it uses.
package upkeep
