// Package pod makes a process a member of the fleet. A pod has one engine, and goroutines that listen for notifications, fire schedules,
// maintain the tables and feed clients. Package runner is its public API. Package remote/internal/host serves remote workers on a pod.
package pod
