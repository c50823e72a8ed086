// Package runnertest tests jobs. [Call] calls a single handler without a database. A [Harness] runs pipelines inside a test, with a real
// PostgreSQL database, a clock that the test controls, and pods that die on demand.
//
//	func TestAnOrderIsShippedOnce(t *testing.T) {
//		h := runnertest.New(t, pool, runner.Options{}, func(r *runner.Runner) {
//			runner.Handle(r, charge)
//			runner.Handle(r, ship)
//		})
//		h.DieAt(runnertest.BeforeFinish, "charge")
//		id := h.Enqueue(Charge{Order: 7})
//		h.RunUntilIdle()
//		h.RequireState(id, runner.StateSucceeded)
//	}
//
// Jobs run only during calls to [Harness.RunUntilIdle]; a submitted job is pending until then. For delays and schedules, time passes only
// with [Harness.Advance] and when a pod dies. Each harness has its own tables, in a schema that is dropped when the test ends. Tests can
// therefore share a database and run in parallel.
//
// # How a pod dies
//
// A harness's pod runs in the test's process and has its own pool. When it dies, its connections are closed and it cannot open new ones.
// Its handlers' contexts are cancelled, and it calls no more handlers. Committed data remains. To the database and the other pods, the pod
// appears to have been killed. Go cannot stop a goroutine, so a handler that ignores its context continues, and its external effects, for
// example through one of the test's pools, still happen. The harness then advances the clock by the lease time, and a new pod takes over.
//
// # Real time
//
// Handlers see real time. Handler timeouts ([runner.Timeout], [runner.InactivityTimeout]) are also measured in real time.
package runnertest
