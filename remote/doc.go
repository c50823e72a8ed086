// Package remote contains the remote worker protocol (trapeze/v1/workers.proto) and tests that exercise both ends of it. `make proto`
// generates package remotepb. Package server serves the protocol on a pod, package host manages the workers' sessions there, and package
// worker runs handlers without a database.
package remote
