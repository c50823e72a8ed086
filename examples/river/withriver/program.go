// Package withriver is the program written for River.
package withriver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	world "github.com/trapeze-run/trapeze/examples/river"
)

// Migrate creates River's tables.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

type Welcome struct {
	Email string `json:"email"`
}

func (Welcome) Kind() string { return "welcome" }

type welcomeWorker struct {
	river.WorkerDefaults[Welcome]
	w *world.World
}

func (k *welcomeWorker) Work(_ context.Context, j *river.Job[Welcome]) error {
	err := k.w.Send(j.Args.Email)
	if errors.Is(err, world.ErrNoAddress) {
		return river.JobCancel(err)
	}
	return err
}

func (k *welcomeWorker) NextRetry(*river.Job[Welcome]) time.Time {
	return time.Now().Add(10 * time.Millisecond)
}

type Track struct {
	Parcel string `json:"parcel"`
}

func (Track) Kind() string { return "track" }

type trackWorker struct {
	river.WorkerDefaults[Track]
	w *world.World
}

func (k *trackWorker) Work(_ context.Context, j *river.Job[Track]) error {
	if !k.w.Arrived(j.Args.Parcel) {
		return river.JobSnooze(10 * time.Millisecond)
	}
	k.w.Did("arrived " + j.Args.Parcel)
	return nil
}

type Invoice struct {
	Number string `json:"number"`
}

func (Invoice) Kind() string { return "invoice" }

func (Invoice) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: "billing", UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

type invoiceWorker struct {
	river.WorkerDefaults[Invoice]
	pool *pgxpool.Pool
}

func (k *invoiceWorker) Work(ctx context.Context, j *river.Job[Invoice]) error {
	if err := river.RecordOutput(ctx, "paid "+j.Args.Number); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, k.pool, func(tx pgx.Tx) error {
		if err := world.Pay(ctx, tx, j.Args.Number); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, j)
		return err
	})
}

type Slow struct{}

func (Slow) Kind() string { return "slow" }

type slowWorker struct{ river.WorkerDefaults[Slow] }

func (*slowWorker) Work(ctx context.Context, _ *river.Job[Slow]) error {
	<-ctx.Done()
	return ctx.Err()
}

func (*slowWorker) Timeout(*river.Job[Slow]) time.Duration { return 50 * time.Millisecond }

type Beat struct{}

func (Beat) Kind() string { return "beat" }

// errorHandler is called for each failed attempt.
type errorHandler struct{ w *world.World }

func (h *errorHandler) HandleError(_ context.Context, j *rivertype.JobRow, _ error) *river.ErrorHandlerResult {
	h.w.Did("failed try of " + j.Kind)
	return nil
}

func (h *errorHandler) HandlePanic(context.Context, *rivertype.JobRow, any, string) *river.ErrorHandlerResult {
	return nil
}

// Program inserts jobs and runs them.
type Program struct {
	client *river.Client[pgx.Tx]
	stop   context.CancelFunc
}

// Start creates a client and starts it.
func Start(ctx context.Context, pool *pgxpool.Pool, w *world.World) (*Program, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &welcomeWorker{w: w})
	river.AddWorker(workers, &trackWorker{w: w})
	river.AddWorker(workers, &invoiceWorker{pool: pool})
	river.AddWorker(workers, &slowWorker{})
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[Beat]) error {
		w.Did("beat")
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Workers: workers,
		Queues: map[string]river.QueueConfig{
			river.QueueDefault: {MaxWorkers: 8},
			"billing":          {MaxWorkers: 1},
		},
		Middleware: []rivertype.Middleware{
			river.WorkerMiddlewareFunc(func(ctx context.Context, j *rivertype.JobRow, doInner func(context.Context) error) error {
				defer w.Did("try of " + j.Kind)
				return doInner(ctx)
			}),
		},
		PeriodicJobs: []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(time.Second),
			func() (river.JobArgs, *river.InsertOpts) { return Beat{}, nil }, nil)},
		ErrorHandler: &errorHandler{w},
		Logger:       slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	return &Program{client, stop}, client.Start(ctx)
}

// Client returns the client from which Move moves jobs.
func (p *Program) Client() *river.Client[pgx.Tx] { return p.client }

// Stop waits for the running jobs.
func (p *Program) Stop(ctx context.Context) error {
	defer p.stop()
	return p.client.Stop(ctx)
}

// SignUp submits a job in the caller's transaction.
func (p *Program) SignUp(ctx context.Context, tx pgx.Tx, email string) error {
	_, err := p.client.InsertTx(ctx, tx, Welcome{Email: email}, nil)
	return err
}

// Import inserts many jobs.
func (p *Program) Import(ctx context.Context, emails []string) error {
	jobs := make([]river.InsertManyParams, len(emails))
	for i, email := range emails {
		jobs[i] = river.InsertManyParams{Args: Welcome{Email: email}}
	}
	_, err := p.client.InsertMany(ctx, jobs)
	return err
}

// Watch submits a job that is due after a delay.
func (p *Program) Watch(ctx context.Context, parcel string, after time.Duration) (id int64, err error) {
	made, err := p.client.Insert(ctx, Track{Parcel: parcel}, &river.InsertOpts{ScheduledAt: time.Now().Add(after)})
	if err != nil {
		return 0, err
	}
	return made.Job.ID, nil
}

// Forget cancels a job that Watch submitted.
func (p *Program) Forget(ctx context.Context, id int64) error {
	_, err := p.client.JobCancel(ctx, id)
	return err
}

// Bill submits an invoice's job and reports whether the invoice was new.
func (p *Program) Bill(ctx context.Context, number string) (id int64, isNew bool, err error) {
	made, err := p.client.Insert(ctx, Invoice{Number: number}, nil)
	if err != nil {
		return 0, false, err
	}
	return made.Job.ID, !made.UniqueSkippedAsDuplicate, nil
}

// Hang submits a slow job that is not retried.
func (p *Program) Hang(ctx context.Context) error {
	_, err := p.client.Insert(ctx, Slow{}, &river.InsertOpts{MaxAttempts: 1})
	return err
}

// Output returns a job's output, as JSON, once it has ended.
func (p *Program) Output(ctx context.Context, id int64) (string, error) {
	for {
		j, err := p.client.JobGet(ctx, id)
		if err != nil {
			return "", err
		}
		if j.State == rivertype.JobStateCompleted {
			return string(j.Output()), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
