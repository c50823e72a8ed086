// Package pod makes a process a member of the fleet: one engine, and the loops that listen, fire schedules, maintain the tables and feed
// clients. Package runner is its public API. Package remote/host serves remote workers on it.
package pod
