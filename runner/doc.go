// Package runner runs background jobs and pipelines inside a Go web service, with PostgreSQL as the only infrastructure. Most programs
// import only this package and runner/migrate, which creates its tables. Package api adds HTTP and the dashboard, cmd/app adds the
// commands, and remote/worker runs handlers without a database.
//
// A job is a struct that names its kind:
//
//	type Ingest struct{ File string }
//
//	func (Ingest) Kind() string { return "csv_ingest" }
//
// Create a runner with the service's pool, register a handler for each kind, and run it until ctx is cancelled:
//
//	r, err := runner.New(pool, runner.Options{})
//	runner.Handle(r, func(ctx context.Context, j *runner.Job[Ingest]) (*runner.Outcome, error) { … })
//	err = r.Run(ctx)
//
// A handler that has no outcome to return is registered with [HandleFunc] and returns only an error.
//
// Submit a job with [Runner.Enqueue], or in your own transaction with [Runner.EnqueueTx], so that the job exists if and only if your data
// does. A handler continues its pipeline with [Then], starts many jobs with [FanOut], or waits for external work with [Deferred]. [Chain]
// declares a whole pipeline at submission.
//
//	Enqueue ──▶ running here, or pending ──claim──▶ handler ──▶ Then: one commit ──▶ next handler, same process
//	                                    ▲                          │
//	                                    └── every pod, every 10 s ─┘ after a crash
//
// [Runner.Wait] waits for a job to end, and [Result] waits for its typed result. Both work from any process. Package runner/runnertest runs
// pipelines inside a test.
//
// # Schedules and administration
//
// [Runner.DeclareSchedule] submits a job at the times defined by an expression. [Runner.Admin] provides the operators' commands, which
// cancel, retry and approve jobs, pause the queue, and manage lanes, pods, schedules and retention. Each command writes an audit entry.
// [EnqueueSQL] submits a job in a database/sql transaction.
//
// # What a handler can rely on
//
// A handler runs at least once, and at most one result is accepted. Each claim on a job has a higher fence than the previous claim. Trapeze
// rejects return values from handlers of former claims, and their writes through [Job.Tx], [Job.Write], [Job.Checkpoint], [Outcome.InTx],
// [Job.Progress] and [Job.Emit]. Writes in [Outcome.InTx] happen exactly once. No transaction is open while a handler is running. A panic
// fails the attempt.
//
// The handler's context is cancelled with a cause:
//   - [job.ErrCancelled] or [job.ErrForceCancelled]: an operator ended the job
//   - [job.ErrTimeout]: the run exceeded its timeout
//   - [job.ErrInactive]: the handler gave no sign of life
//   - [job.ErrDeadline]: the job is too old
//   - [job.ErrShutdown]: the pod is stopping
//   - [job.ErrLeaseLost]: the pod lost its lease
//   - [job.ErrGone]: the job was deleted
//
// After an error, a panic or a timeout, the handler is called again, which repeats its effects outside the database. By default a job gets
// five attempts, about 1, 2, 4 and 8 seconds apart. For a handler that must not repeat its effects, pass [NoRetry], or set
// Options.MaxAttempts to 1. An error wrapped with [job.Permanent] fails the job immediately. [Retry] and [MaxAttempts] also limit errors
// wrapped with [job.Retryable] or [job.RetryAfter]; Options.MaxAttempts below ten does not. [job.Code] attaches a code that lists can be
// filtered by. If a job's pod dies, the job runs again on another pod, unless it has reached the limit of Options.MaxCrashes; with
// [MaxCrashes] of one, it fails at the first crash.
package runner
