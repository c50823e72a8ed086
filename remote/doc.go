// Package remote holds the protocol of remote workers (trapeze/v1/workers.proto) and the tests of both its ends. `make proto` generates
// package remotepb from it. Package server serves the protocol on a pod, package host has the sessions of the workers there, and package
// worker runs handlers without a database.
package remote
