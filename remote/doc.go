// Package remote contains the protocol of remote workers (trapeze/v1/workers.proto) and tests that cover both sides of it. `make proto`
// generates package remotepb from the protocol. Package server serves it on a pod, package host manages the workers' sessions there, and
// package worker runs handlers without a database.
package remote
