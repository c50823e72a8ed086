package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Services holds everything that a process's engines share.
type Services struct {
	Pool       *pgxpool.Pool // the host's pool, used for EnqueueTx, InTx and Job.Tx
	Store      *store.Store  // claims and finishes
	Commands   *store.Store  // submissions, commands and reads, which must not hold up claims and finishes
	Heartbeats *store.Store  // heartbeats only
	Log        *slog.Logger
	Damped     *telemetry.Damped
	Metrics    *telemetry.Metrics
	Tracing    telemetry.Tracer
	Count      telemetry.Counters
	Ends       *telemetry.Reporter // reports jobs that this process finished
	Waiters    *Waiters
	Clock      *Clock          // the database's clock
	Journal    *journal.Writer // writes events and progress
	Holders    *Holders
	Late       *fleet.Late // for the next notification
}

// NewServices returns the Services of a process that uses the given pools. heldFor limits a statement's time behind a pooler while its caller
// has a transaction open.
func NewServices(pool *pgxpool.Pool, main, front, heart *store.Store, heldFor time.Duration, log *slog.Logger, metrics *telemetry.Metrics, tracer trace.TracerProvider, hooks telemetry.Hooks) Services {
	s := Services{
		Pool: pool, Store: main, Commands: front, Heartbeats: heart, Log: log, Damped: telemetry.NewDamped(log), Metrics: metrics,
		Tracing: telemetry.Tracer{Provider: tracer}, Count: telemetry.NewCounters(metrics), Holders: &Holders{}, Clock: &Clock{}, Late: &fleet.Late{},
	}
	main.BoundHolders(s.Holders.IsInside, heldFor)
	s.Ends = telemetry.NewReporter(metrics, hooks, log, s.Damped)
	s.Waiters, s.Journal = NewWaiters(front, log, s.DBError), journal.NewWriter(front, log, s.DBError)
	return s
}

// HostTx runs do in a transaction on the host's pool and commits it. It returns [ErrOpen] if its caller already runs in such a transaction.
func (s *Services) HostTx(ctx context.Context, do func(pgx.Tx) error) error {
	if s.Holders.IsInside() {
		return ErrOpen
	}
	return pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error { return s.Holders.Inside(nil, func() error { return do(tx) }) })
}

// DBError counts a database error and returns it. The result also matches [job.ErrInvalid] if the database cannot store one of the texts.
func (s *Services) DBError(err error) error {
	if store.Untranslatable(err) && !errors.Is(err, job.ErrInvalid) {
		err = fmt.Errorf("%w: the database's encoding cannot store one of the texts: %w", job.ErrInvalid, err)
	}
	if class := store.Class(err); class != "" {
		s.Metrics.DBErrors.WithLabelValues(class).Inc()
	}
	return err
}

// CommandError returns a command's error. It wraps [job.ErrOutcomeUnknown] if the command's outcome is unknown.
func (s *Services) CommandError(err error) error {
	if store.Unknown(err) {
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, s.DBError(err))
	}
	return s.DBError(err)
}
