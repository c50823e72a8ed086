// Package pod makes a process a member of the fleet. A pod has an engine, and goroutines that listen for notifications, fire schedules,
// maintain the tables and feed clients. Package runner is the public API of a pod. Package remote/internal/host serves remote workers on a
// pod.
package pod
