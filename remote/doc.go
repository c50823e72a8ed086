// Package remote holds the protocol of remote workers (trapeze/v1/workers.proto) and the tests of both its ends. remotepb is generated
// from it by `make proto`, server speaks it on a pod, host has the sessions of the workers there, and worker runs handlers where there is no
// database.
package remote
