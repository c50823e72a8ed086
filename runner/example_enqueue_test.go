package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type Mail struct{ To string }

func (Mail) Kind() string { return "mail" }

// must stops the example if err is not nil.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// printMail registers a handler that prints each mail's recipient.
func printMail(r *runner.Runner) {
	runner.Handle(r, func(_ context.Context, j *runner.Job[Mail]) (*runner.Outcome, error) {
		fmt.Println("mail to", j.Args.To)
		return nil, nil
	})
}

// The job exists if and only if the transaction commits.
func ExampleRunner_EnqueueTx() {
	during(printMail, func(ctx context.Context, r *runner.Runner) {
		err := r.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := r.EnqueueTx(ctx, tx, Mail{"eve"}); err != nil {
				return err
			}
			return errors.New("the order is refused") // the transaction rolls back, so no mail is sent
		})
		fmt.Println(err)
		var made runner.Submitted
		must(r.Tx(ctx, func(tx pgx.Tx) (err error) {
			made, err = r.EnqueueTx(ctx, tx, Mail{"ada"})
			return err
		}))
		await(ctx, r, made.ID)
	})
	// Output:
	// the order is refused
	// mail to ada
	// succeeded
}

// Writes in InTx are part of the commit that ends the job, so they happen exactly once, no matter how often the handler is called.
func ExampleOutcome_InTx() {
	calls := 0
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Mail]) (*runner.Outcome, error) {
			calls++
			return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `insert into sent values ($1)`, j.Args.To); err != nil || calls > 1 {
					return err
				}
				return runner.RetryAfter(time.Millisecond, errors.New("rolled back, and tried again"))
			}), nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		must(r.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `create table sent ("to" text)`)
			return err
		}))
		made, err := r.Enqueue(ctx, Mail{"ada"})
		must(err)
		await(ctx, r, made.ID)
		var rows int
		must(r.Tx(ctx, func(tx pgx.Tx) error { return tx.QueryRow(ctx, `select count(*) from sent`).Scan(&rows) }))
		fmt.Println(calls, "calls,", rows, "row")
	})
	// Output:
	// succeeded
	// 2 calls, 1 row
}

// A statement added with Write is part of the commit that ends the job. Jobs that finish concurrently can share this commit.
func ExampleOutcome_Write() {
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Mail]) (*runner.Outcome, error) {
			return runner.Done(nil).Write(`insert into sent values ($1)`, j.Args.To), nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		must(r.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `create table sent ("to" text)`)
			return err
		}))
		made, err := r.Enqueue(ctx, Mail{"ada"})
		must(err)
		await(ctx, r, made.ID)
		var to string
		must(r.Tx(ctx, func(tx pgx.Tx) error { return tx.QueryRow(ctx, `select "to" from sent`).Scan(&to) }))
		fmt.Println(to)
	})
	// Output:
	// succeeded
	// ada
}

// While a job holds the key, another submission creates no job and returns the existing one.
func ExampleUnique() {
	during(printMail, func(ctx context.Context, r *runner.Runner) {
		first, err := r.Enqueue(ctx, Mail{"ada"}, runner.Unique("ada", runner.WhileActive), runner.Delay(time.Hour))
		must(err)
		second, err := r.Enqueue(ctx, Mail{"ada"}, runner.Unique("ada", runner.WhileActive))
		must(err)
		fmt.Println(second.Duplicate, second.ID == first.ID)
	})
	// Output: true true
}

// A client that does not know whether its request arrived can repeat the request with the same key. It gets the same job, even if that job
// has already finished.
func ExampleIdempotencyKey() {
	during(printMail, func(ctx context.Context, r *runner.Runner) {
		first, err := r.Enqueue(ctx, Mail{"ada"}, runner.IdempotencyKey("request 7"))
		must(err)
		await(ctx, r, first.ID)
		again, err := r.Enqueue(ctx, Mail{"ada"}, runner.IdempotencyKey("request 7"))
		must(err)
		fmt.Println(again.Duplicate, again.ID == first.ID)
		_, err = r.Enqueue(ctx, Mail{"ben"}, runner.IdempotencyKey("request 7"))
		fmt.Println(errors.Is(err, runner.ErrKeyReused))
	})
	// Output:
	// mail to ada
	// succeeded
	// true true
	// true
}

// Only one job with the same kind and subject runs at a time, across all pods.
func ExampleSubject() {
	var running, overlaps atomic.Int32
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, _ *runner.Job[Mail]) (*runner.Outcome, error) {
			if running.Add(1) > 1 {
				overlaps.Add(1)
			}
			defer running.Add(-1)
			return nil, nil
		})
	}, func(ctx context.Context, r *runner.Runner) {
		var ids []int64
		for range 5 {
			made, err := r.Enqueue(ctx, Mail{"ada"}, runner.Subject("mailbox of ada"))
			must(err)
			ids = append(ids, made.ID)
		}
		for _, id := range ids {
			_, err := r.Wait(ctx, id)
			must(err)
		}
		fmt.Println(overlaps.Load(), "ran beside another")
	})
	// Output: 0 ran beside another
}

// The job does not run until an operator approves it.
func ExampleNeedsApproval() {
	during(printMail, func(ctx context.Context, r *runner.Runner) {
		made, err := r.Enqueue(ctx, Mail{"everybody"}, runner.NeedsApproval())
		must(err)
		fmt.Println(made.State)
		must(r.Admin("the boss").Approve(ctx, made.ID))
		await(ctx, r, made.ID)
	})
	// Output:
	// awaiting_approval
	// mail to everybody
	// succeeded
}

// A handler that returns an error is called again after a delay, which grows with each attempt.
func ExampleRetry() {
	during(func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[Mail]) (*runner.Outcome, error) {
			fmt.Println("attempt", j.Attempt())
			if j.Attempt() < 3 {
				return nil, errors.New("the mail server is busy")
			}
			return nil, nil
		}, runner.Retry(5, runner.Backoff{Base: time.Millisecond}))
	}, func(ctx context.Context, r *runner.Runner) {
		made, err := r.Enqueue(ctx, Mail{"ada"})
		must(err)
		await(ctx, r, made.ID)
	})
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
	// succeeded
}

// The schedule is stored in the database and fires once for all pods, in the given time zone. Here, an operator triggers it early.
func ExampleRunner_DeclareSchedule() {
	during(func(r *runner.Runner) {
		printMail(r)
		r.DeclareSchedule("nightly", "30 2 * * *", Mail{"everybody"}, runner.Zone("Europe/Zurich"))
	}, func(ctx context.Context, r *runner.Runner) {
		var err error
		for err = runner.ErrUnknownSchedule; errors.Is(err, runner.ErrUnknownSchedule) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_, err = r.Admin("").ScheduleByName(ctx, "nightly") // Run declares the schedule
		}
		must(err)
		fire, err := r.Admin("the boss").TriggerSchedule(ctx, "nightly", nil)
		must(err)
		await(ctx, r, *fire.JobID)
	})
	// Output:
	// mail to everybody
	// succeeded
}

// A lane limits the number of jobs of certain kinds that run concurrently, across all pods. Operators can change the limit at run time.
func ExampleAdmin_SetLane() {
	during(printMail, func(ctx context.Context, r *runner.Runner) {
		_, err := r.Admin("the boss").SetLane(ctx, "mail", job.LaneChange{Slots: job.To(2), Kinds: &[]string{"mail"}})
		must(err)
		made, err := r.Enqueue(ctx, Mail{"ada"})
		must(err)
		j, err := r.Wait(ctx, made.ID)
		must(err)
		fmt.Println(j.State, "in the lane", j.Lane)
	})
	// Output:
	// mail to ada
	// succeeded in the lane mail
}
