package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type Debit struct{ Order int }

func (Debit) Kind() string { return "debit" }

// Middleware wraps submissions and handler calls; hooks report how attempts and jobs end.
func Example_hooks() {
	url, drop := pgtest.ExampleURL()
	defer drop()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{
		EnqueueMiddleware: []runner.EnqueueMiddleware{
			func(ctx context.Context, jobs []runner.Submission, next func(context.Context) ([]runner.Submitted, error)) ([]runner.Submitted, error) {
				for _, j := range jobs {
					if j.Subject == nil {
						return nil, fmt.Errorf("%s without a subject", j.Kind)
					}
				}
				return next(ctx)
			},
		},
		Middleware: []runner.Middleware{
			func(ctx context.Context, j *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
				o, err := next(ctx)
				fmt.Printf("attempt %d: %v\n", j.Attempt(), err)
				return o, err
			},
		},
		Logger: slog.New(slog.DiscardHandler),
		OnRetry: func(_ context.Context, e job.End) {
			fmt.Println(e.Kind, e.State, e.Reason, e.ErrorClass, e.ErrorCode)
		},
		OnEnd: func(_ context.Context, e job.End) {
			fmt.Println(e.Kind, e.State, e.Reason, e.ErrorClass, e.ErrorCode)
			stop()
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	runner.Handle(r, func(context.Context, *runner.Job[Debit]) (*runner.Outcome, error) {
		return nil, job.Code("card_declined", errors.New("no money"))
	}, runner.Retry(2, job.Backoff{Base: time.Millisecond}))

	_, err = r.Enqueue(ctx, Debit{Order: 7})
	fmt.Println(err)
	if _, err := r.Enqueue(ctx, Debit{Order: 7}, runner.Subject("orders/7")); err != nil {
		fmt.Println(err)
	}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// debit without a subject
	// attempt 1: no money
	// debit pending error error card_declined
	// attempt 2: no money
	// debit failed attempts_exhausted error card_declined
}
