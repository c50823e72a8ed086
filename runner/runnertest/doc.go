// Package runnertest tests jobs. [Call] calls one handler without a database. A [Harness] runs pipelines inside a test, on a real
// PostgreSQL, in the test's own time, with pods that die where the test wants.
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
// Jobs run only during calls of [Harness.RunUntilIdle]: a submitted job is pending until then. Time passes only with [Harness.Advance], for
// delays and for schedules. Each harness has its own tables, in a schema that is dropped when the test ends. Tests can therefore share a
// database and run in parallel.
//
// # How a pod dies
//
// A pod of the harness runs in the test's process, on its own pool. When it dies, its connections are cut, it gets no new ones, the
// contexts of its handlers end, and it calls no handler any more. Committed data stays. The database and the other pods see the same when a
// process is killed. Go cannot stop a goroutine, so a handler that ignores its context continues: its effects elsewhere, such as on a pool
// of the test, still happen. Then the harness advances the clock by the lease, and a new pod takes over.
//
// # Real time
//
// Handlers see the real time. Timeouts of handlers ([runner.Timeout], [runner.StaleAfter]) are measured in it.
package runnertest
