// Package runner runs background jobs and chains of them inside a Go web service, with PostgreSQL as the only infrastructure. Most programs
// import only this package and runner/migrate, which creates its tables. Package api adds HTTP and the dashboard, cmd/app adds the
// commands, and remote/worker runs handlers without a database.
//
// A job is a struct that names its kind:
//
//	type Ingest struct{ File string }
//
//	func (Ingest) Kind() string { return "csv_ingest" }
//
// Make a runner on the service's pool, register a handler for each kind, and run it until the process is told to stop:
//
//	r, err := runner.New(pool, runner.Options{})
//	runner.Handle(r, func(ctx context.Context, j *runner.Job[Ingest]) (*runner.Outcome, error) { … })
//	err = r.Run(ctx)
//
// Submit a job with [Runner.Enqueue], or with [Runner.EnqueueTx] in your own transaction, so that the job exists if and only if your data
// does. A handler continues its pipeline with [Then], starts many jobs at once with [FanOut], or waits for work outside with [Deferred].
// [Chain] declares a pipeline when it is submitted.
//
//	Enqueue ──▶ running here, or pending ──claim──▶ handler ──▶ Then: one commit ──▶ next handler, same process
//	                                    ▲                          │
//	                                    └── every pod, every 10 s ─┘ after a crash
//
// [Runner.Wait] waits for a job to end, and [Result] for its typed result, from any process. Package runner/runnertest runs pipelines
// inside a test.
//
// # Schedules and administration
//
// [Runner.DeclareSchedule] submits a job whenever an expression fires. [Runner.Admin] offers what operators need: cancel, retry, approve,
// lanes, pods, pause, schedules and retention, each with an audit entry. [EnqueueSQL] submits in a transaction of database/sql.
//
// # What a handler may rely on
//
// A handler runs at least once, and at most one result is accepted. Each claim of a job has a higher fence. Trapeze rejects the writes of a
// former claim: those through [Job.Tx], [Job.Write], [Job.Checkpoint], [Outcome.InTx], [Job.Progress] and [Job.Emit], and the handler's
// return. Writes in [Outcome.InTx] happen exactly once. No transaction is open while a handler runs. A panic fails the attempt.
//
// The handler's context ends with a cause:
//   - [job.ErrCancelled] or [job.ErrStopped]: an operator ended the job
//   - [job.ErrTimeout]: the run exceeded its timeout
//   - [job.ErrStale]: the handler gave no sign of life
//   - [job.ErrDeadline]: the job is too old
//   - [job.ErrShutdown]: the pod is stopping
//   - [job.ErrLeaseLost]: the pod lost its lease
//   - [job.ErrGone]: the job was deleted
//
// After an error, a panic or a timeout the handler is called again: five tries by default, about 1, 2, 4 and 8 seconds apart. Its effects
// outside the database then happen again too. For a handler that must not repeat them, pass [Retry] with one try, or set
// Options.MaxAttempts to 1. An error wrapped with [job.Retryable], [job.RetryAfter] or [job.Permanent] overrides this. [job.Code] attaches
// a code by which lists filter. When its pod dies, a job runs again on another one, until Options.MaxCrashes pods have died with it.
package runner
