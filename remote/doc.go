// Package remote holds the protocol of remote workers (trapeze/v1/workers.proto) and the tests of both its ends. remotepb is generated
// from it by `make proto`, server serves it on a pod, worker runs handlers with it where there is no database.
package remote
