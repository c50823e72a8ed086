// Package pod joins a process to the fleet: one engine, and the loops that listen, fire schedules, maintain the tables and feed clients.
// Package runner is its public face; package remote/host serves remote workers on it.
package pod
