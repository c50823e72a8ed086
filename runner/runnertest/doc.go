// Package runnertest tests jobs. [Call] calls one handler without a database. A [Harness] runs pipelines inside a test: on a real
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
// Nothing runs between the calls of [Harness.RunUntilIdle]: a submitted job is pending until then. Time passes only with [Harness.Advance],
// for delays and for schedules. Each harness has its own tables, in a schema that ends with the test, so tests can share a database and run
// in parallel.
//
// # What a death is
//
// A pod of the harness runs in the test's process, on a pool of its own. When it dies, its connections are cut, it gets no new
// ones, the contexts of its handlers end, and no handler is called by it any more; what had been committed stays. That is all the
// database and the other pods ever see of a process that is killed. A handler that goes on all the same is not stopped, as Go can
// stop no goroutine: what it does elsewhere, such as on a pool that the test gave it, still happens. Then the clock goes on by the
// lease, and a new pod takes over.
//
// # What is not faked
//
// Handlers see the real time. Timeouts of handlers ([runner.Timeout], [runner.StaleAfter]) are measured in it.
package runnertest
