// Package withtrapeze is the program written for Trapeze.
package withtrapeze

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	world "github.com/trapeze-run/trapeze/examples/river"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

// Migrate creates Trapeze's tables in a separate schema.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return migrate.Up(ctx, pool, runner.Options{})
}

type Welcome struct {
	Email string `json:"email"`
}

func (Welcome) Kind() string { return "welcome" }

type handlers struct{ w *world.World }

func (h handlers) welcome(_ context.Context, j *runner.Job[Welcome]) (*runner.Outcome, error) {
	err := h.w.Send(j.Args.Email)
	if errors.Is(err, world.ErrNoAddress) {
		return nil, runner.Permanent(err)
	}
	return nil, err
}

type Track struct {
	Parcel string `json:"parcel"`
}

func (Track) Kind() string { return "track" }

func (h handlers) track(_ context.Context, j *runner.Job[Track]) (*runner.Outcome, error) {
	if !h.w.Arrived(j.Args.Parcel) {
		return runner.Snooze(10*time.Millisecond, "on its way"), nil
	}
	h.w.Did("arrived " + j.Args.Parcel)
	return nil, nil
}

type Invoice struct {
	Number string `json:"number"`
}

func (Invoice) Kind() string { return "invoice" }

func (h handlers) invoice(_ context.Context, j *runner.Job[Invoice]) (*runner.Outcome, error) {
	return runner.Done("paid " + j.Args.Number).InTx(func(ctx context.Context, tx pgx.Tx) error {
		return world.Pay(ctx, tx, j.Args.Number)
	}), nil
}

type Slow struct{}

func (Slow) Kind() string { return "slow" }

func (h handlers) slow(ctx context.Context, _ *runner.Job[Slow]) (*runner.Outcome, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

type Beat struct{}

func (Beat) Kind() string { return "beat" }

// Program enqueues jobs and runs them.
type Program struct {
	r     *runner.Runner
	stop  context.CancelFunc
	ended chan error
}

// Start creates a runner and runs it.
func Start(ctx context.Context, pool *pgxpool.Pool, w *world.World) (*Program, error) {
	one := 1
	r, err := runner.New(pool, runner.Options{
		Slots: 8,
		Lanes: []runner.LaneSetup{{Name: "billing", Slots: &one, Kinds: []string{"invoice"}}},
		Middleware: []runner.Middleware{
			func(ctx context.Context, j *runner.Job[runner.Raw], next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
				defer w.Did("try of " + j.Kind())
				outcome, err := next(ctx)
				if err != nil && !runner.IsPermanent(err) {
					w.Did("failed try of " + j.Kind())
				}
				return outcome, err
			},
		},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, err
	}
	h := handlers{w}
	runner.Handle(r, h.welcome, runner.Retry(25, runner.Backoff{Base: 10 * time.Millisecond}))
	runner.Handle(r, h.track)
	runner.Handle(r, h.invoice)
	runner.Handle(r, h.slow, runner.Timeout(50*time.Millisecond))
	runner.Handle(r, func(context.Context, *runner.Job[Beat]) (*runner.Outcome, error) {
		w.Did("beat")
		return nil, nil
	})
	r.DeclareSchedule("beat", "@every 1s", Beat{})
	ctx, stop := context.WithCancel(ctx)
	p := &Program{r, stop, make(chan error, 1)}
	go func() { p.ended <- r.Run(ctx) }()
	return p, nil
}

// Stop waits for the running jobs.
func (p *Program) Stop(context.Context) error {
	defer p.r.Close()
	p.stop()
	return <-p.ended
}

// SignUp submits a job in the caller's transaction.
func (p *Program) SignUp(ctx context.Context, tx pgx.Tx, email string) error {
	_, err := p.r.EnqueueTx(ctx, tx, Welcome{Email: email})
	return err
}

// Import enqueues many jobs.
func (p *Program) Import(ctx context.Context, emails []string) error {
	jobs := make([]runner.Args, len(emails))
	for i, email := range emails {
		jobs[i] = Welcome{Email: email}
	}
	_, err := p.r.EnqueueMany(ctx, jobs)
	return err
}

// Watch submits a job that is due after a delay.
func (p *Program) Watch(ctx context.Context, parcel string, after time.Duration) (id int64, err error) {
	made, err := p.r.Enqueue(ctx, Track{Parcel: parcel}, runner.Delay(after))
	return made.ID, err
}

// Forget cancels a job that Watch submitted.
func (p *Program) Forget(ctx context.Context, id int64) error {
	_, err := p.r.Admin("the parcels page").Cancel(ctx, id)
	return err
}

// Bill submits an invoice's job and reports whether the invoice was new.
func (p *Program) Bill(ctx context.Context, number string) (id int64, isNew bool, err error) {
	made, err := p.r.Enqueue(ctx, Invoice{Number: number}, runner.Unique(number, runner.WhileActive))
	return made.ID, !made.Duplicate, err
}

// Hang submits a slow job that is not retried.
func (p *Program) Hang(ctx context.Context) error {
	_, err := p.r.Enqueue(ctx, Slow{}, runner.MaxAttempts(1))
	return err
}

// Output returns a job's result, as JSON, once it has ended.
func (p *Program) Output(ctx context.Context, id int64) (string, error) {
	result, err := runner.Result[json.RawMessage](ctx, p.r, id)
	return string(result), err
}

// Runner returns the runner to which Move moves jobs.
func (p *Program) Runner() *runner.Runner { return p.r }
