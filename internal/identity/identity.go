// Package identity holds the state of a pod, or of a remote worker's session on a pod, that two packages share: poller, which finds the
// identity's jobs, and engine, which runs them.
package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Identity is a pod or session: its lease, its slots, and the kinds of jobs that it runs.
type Identity struct {
	Services
	Opts Options
	handled

	Lease    *fleet.Lease
	Lanes    *slots.Lanes
	Marks    *slots.Marks
	Ahead    *slots.Ahead // jobs that were claimed ahead of time and are waiting for a slot
	Closing  atomic.Bool  // no more jobs are started
	InFlight inFlight
	Unknown  unknownOutcomes // raised when a reply was lost, because the table may then assign unknown jobs to this identity
}

// New returns an identity that handles no kinds until Handle is called.
func New(s Services, o Options) *Identity {
	return &Identity{Services: s, Opts: o, handled: handled{Handled: map[string]bool{}, HandledKinds: []string{}},
		Lease: fleet.NewLease(o.PodID), Lanes: slots.NewLanes(o.Slots, o.MayUse), Marks: &slots.Marks{}, Ahead: slots.NewAhead()}
}

// Options configures an engine. See the Options of package runner.
type Options struct {
	PodID                              string                 // a random id if empty
	MayUse                             func(lane string) bool // all lanes if nil
	DeclaredLanes                      map[string]string      // by kind; they apply once the database has these lanes
	Name, Version                      string
	Slots                              int
	Disabled                           bool
	ClaimAhead                         bool
	PollInterval                       time.Duration
	LeaseDuration, HeartbeatInterval   time.Duration
	ShutdownGrace, StuckAfter          time.Duration
	Timeout, InactivityTimeout         time.Duration
	MaxAttempts, MaxCrashes, MaxFanOut int
	DirectURL                          string
}

func (i *Identity) PodID() string { return i.Lease.ID() }

// NotificationsDisabled reports whether notifications are disabled, for example because the only connection leads through a pooler.
func (i *Identity) NotificationsDisabled() bool { return i.Opts.DirectURL == "off" }

// Slots returns the number of slots, or 0 if the engine runs no jobs.
func (i *Identity) Slots() int {
	if i.Opts.Disabled {
		return 0
	}
	return i.Opts.Slots
}

// StopClaims prevents the engine from starting more jobs.
func (i *Identity) StopClaims() { i.Closing.Store(true) }

// handled holds the kinds whose jobs the identity runs. They are fixed when it starts.
type handled struct {
	Handled      map[string]bool
	HandledKinds []string
	took         map[string]*atomic.Int64 // average duration of the latest runs, in nanoseconds, of each kind whose jobs may be claimed ahead of time; 0 if there are none
}

// Handle sets the kinds of jobs that are claimed, and those of them whose jobs may be claimed ahead of time. It must be called before the
// first claim.
func (i *Identity) Handle(kinds []string, ahead func(kind string) bool) {
	i.HandledKinds, i.took = kinds, map[string]*atomic.Int64{}
	for _, name := range kinds {
		if i.Handled[name] = true; ahead(name) {
			i.took[name] = &atomic.Int64{}
		}
	}
}

// NoteRun updates the moving average of a kind's run times, which covers roughly the last eight runs. The average starts high, so a kind
// needs about forty short runs to count as short.
func (i *Identity) NoteRun(kind string, took time.Duration) {
	if average := i.took[kind]; average != nil {
		before := cmp.Or(average.Load(), int64(slots.AheadFor))
		average.Store(max(before+(int64(took)-before)/8, 1))
	}
}

// ShortKinds returns the kinds whose jobs may be claimed ahead of time because their recent runs took less time than the given one, and
// the longest of their average run times.
func (i *Identity) ShortKinds(than time.Duration) (kinds []string, longest time.Duration) {
	for _, name := range i.HandledKinds {
		if average := i.took[name]; average != nil {
			if took := time.Duration(average.Load()); took > 0 && took < than {
				kinds, longest = append(kinds, name), max(longest, took)
			}
		}
	}
	return kinds, longest
}

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
