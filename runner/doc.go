// Package runner runs background jobs and chains of them inside a Go web service, with PostgreSQL as the only
// infrastructure. Most programs import this package alone, and runner/migrate, which makes its tables. Package api adds HTTP and the dashboard,
// cmd/app the commands; remote/worker runs handlers without a database.
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
// Submit with [Runner.Enqueue], or with [Runner.EnqueueTx] in a transaction of your own, so that the job exists if and
// only if your data does. A handler hands its pipeline on with [Then], to many at once with [FanOut], or to the world outside
// with [Deferred]; [Chain] declares a pipeline when it is submitted.
//
//	Enqueue ──▶ running here, or pending ──claim──▶ handler ──▶ Then: one commit ──▶ next handler, same process
//	                                    ▲                          │
//	                                    └── every pod, every 10 s ─┘ whatever a crash dropped
//
// [Runner.Wait] waits for a job to end, and [Result] for its typed result, from any process.
// Package runner/runnertest runs pipelines inside a test.
//
// # Beside handlers
//
// [Runner.DeclareSchedule] submits a job whenever an expression fires. [Runner.Admin] has the operators' side: cancel, retry, approve, lanes,
// pods, pause, schedules and retention, each with an audit entry. [EnqueueSQL] submits in a transaction of database/sql.
//
// # What a handler may rely on
//
// It runs at least once, and of all runs at most one result is accepted: each claim of a job has a fence that rises, and
// what a former owner still writes through [Job.Tx], [Job.Write], [Job.Checkpoint], [Outcome.InTx], [Job.Progress], [Job.Emit] or its
// return is refused.
// Writes in [Outcome.InTx] happen exactly once. No transaction is open while a handler runs. A panic fails the attempt.
//
// Its context ends with a cause when the job is cancelled ([job.ErrCancelled], [job.ErrStopped]), timed out
// ([job.ErrTimeout]), gave no sign of life ([job.ErrStale]) or is too old ([job.ErrDeadline]), the pod stops ([job.ErrShutdown]) or lost its lease ([job.ErrLeaseLost]), or the job was deleted ([job.ErrGone]).
//
// After an error, a panic or a timeout the handler is called again: five tries by default, about 1, 2, 4 and 8 seconds apart. Its
// effects outside the database happen again too: register a handler that must not repeat them with [Retry] and one try, or set
// Options.MaxAttempts to 1. An error that is wrapped with [job.Retryable], [job.RetryAfter] or [job.Permanent] decides for itself; [job.Code]
// gives it a code, by which lists filter. When its pod dies, a job runs again on another one, until Options.MaxCrashes pods have died with it.
package runner
