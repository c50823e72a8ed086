package engine

import (
	"cmp"
	"context"
	"encoding/json"
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
	"github.com/trapeze-run/trapeze/poller"
)

// Identity is the pod or session that an engine works for. It holds the state shared by all parts of the engine.
type Identity struct {
	Services
	Member member
	Opts   Options
	Kinds  map[string]*Handler // all known kinds, which next steps may have

	handled
	Lease    *fleet.Lease
	Lanes    *slots.Lanes
	Marks    *slots.Marks
	Runs     *runs
	Closing  atomic.Bool // no more jobs are started
	inFlight inFlight
	Unknown  unknownOutcomes // raised when a reply was lost, because the table may then assign unknown jobs to this identity

	Poller  *poller.Poller
	look    atomic.Bool // more jobs may have become pending since the latest claim
	Due     dueTimes
	admit   *admitter
	backlog backlog      // whether the latest claim left jobs behind
	ahead   *slots.Ahead // jobs that were claimed ahead of time and are waiting for a slot
	turns   fleet.Turns  // this engine's turn to claim after a notification
	news    atomic.Bool  // more urgent jobs than those in ahead may have arrived
}

// handled holds the kinds whose jobs the engine runs. They are fixed when it starts.
type handled struct {
	Handled      map[string]bool
	HandledKinds []string
	took         map[string]*atomic.Int64 // average duration of each kind's latest runs, in nanoseconds; 0 if there are none
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
	journal    *journal.Writer // writes events and progress
	holders    *holders
}

// NewServices returns the Services of a process that uses the given pools. heldFor limits a statement's time behind a pooler while its caller
// has a transaction open.
func NewServices(pool *pgxpool.Pool, main, front, heart *store.Store, heldFor time.Duration, log *slog.Logger, metrics *telemetry.Metrics, tracer trace.TracerProvider, hooks telemetry.Hooks) Services {
	s := Services{
		Pool: pool, Store: main, Commands: front, Heartbeats: heart, Log: log, Damped: telemetry.NewDamped(log), Metrics: metrics,
		Tracing: telemetry.Tracer{Provider: tracer}, Count: telemetry.NewCounters(metrics), holders: &holders{}, Clock: &Clock{},
	}
	main.BoundHolders(s.holders.isInside, heldFor)
	s.Ends = telemetry.NewReporter(metrics, hooks, log, s.Damped)
	s.Waiters, s.journal = NewWaiters(front, log, s.DBError), journal.NewWriter(front, log, s.DBError)
	return s
}

// HostTx runs do in a transaction on the host's pool and commits it. It returns [ErrOpen] if its caller already runs in such a transaction.
func (s *Services) HostTx(ctx context.Context, do func(pgx.Tx) error) error {
	if s.holders.isInside() {
		return ErrOpen
	}
	return pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error { return s.holders.inside(nil, func() error { return do(tx) }) })
}

// member is implemented by the identity that an engine works for.
type member interface {
	// Open reopens the identity's row after its lease was lost.
	Open(ctx context.Context) error
	// Heartbeat renews the lease, and reads the settings and commands that the engine must apply.
	Heartbeat(ctx context.Context, podID string) (store.Beat, error)
	// Apply applies the pod-wide state in a heartbeat's response.
	Apply(store.Beat)
	// LeaseLost ends or replaces the identity after other pods have closed its row.
	LeaseLost(ctx context.Context)
	// HistoryChanged discards state that depends on commits that the database may have lost.
	HistoryChanged()
	// WakePeers wakes the process's other engines and the other pods, because there is work that this engine cannot take immediately.
	WakePeers()
	// PassOn passes a wake-up on to the next pods, because there are more jobs than this engine can take.
	PassOn(fleet.Up)
	// Cancel cancels a claim's handler if an engine in this process runs it.
	Cancel(c job.Lease, why job.Reason)
	// Claims returns the claims that the table assigns to the identity. The ok result is false if another process is now responsible for
	// them.
	Claims(ctx context.Context, podID string) (held []store.Held, ok bool, err error)
	// ClaimMissing tries to release a claim that is missing from the table, and reports whether it did. If not, the engine cancels the
	// handler.
	ClaimMissing(*Run) bool
	// ClaimsCompared is called after each comparison of the claims with the table.
	ClaimsCompared(context.Context)
	// MarkLimit returns how long low-water marks may stay valid, and a function that is called when they expire, to wake the engines that
	// share them.
	MarkLimit() (most time.Duration, wake func())
}

// Handle sets the kinds of jobs that the engine claims. It must be called before the engine starts.
func (i *Identity) Handle(kinds []string) {
	i.HandledKinds, i.took = kinds, map[string]*atomic.Int64{}
	for _, name := range kinds {
		i.Handled[name], i.took[name] = true, &atomic.Int64{}
	}
}

func (i *Identity) PodID() string { return i.Lease.ID() }

// NotificationsDisabled reports whether notifications are disabled, for example because the only connection leads through a pooler.
func (i *Identity) NotificationsDisabled() bool { return i.Opts.DirectURL == "off" }

// WakePeers wakes the other engines of this process and the other pods, because there is work that this engine cannot take immediately.
func (i *Identity) WakePeers() { i.Member.WakePeers() }

// Slots returns the number of slots, or 0 if the engine runs no jobs.
func (i *Identity) Slots() int {
	if i.Opts.Disabled {
		return 0
	}
	return i.Opts.Slots
}

// Wake requests a claim for all due jobs.
func (i *Identity) Wake() {
	i.news.Store(true)
	i.look.Store(true)
	i.Poller.Wake()
}

// WakeAll wakes this poller, the other engines and the other pods.
func (i *Identity) WakeAll() {
	i.Wake()
	i.WakePeers()
}

// WakeDue requests a promotion and a claim, after a transaction that may have parked jobs that are due.
func (i *Identity) WakeDue() {
	i.Due.parked(0)
	i.Wake()
}

// SubjectFreed admits the next job of a subject, after the end of a job that held the subject's guard.
func (i *Identity) SubjectFreed(end job.End) { i.admit.freed(end.Kind, end.Subject) }

// wakeAfter records that a job was parked for the given time, so that the poller wakes up when the job becomes due.
func (i *Identity) wakeAfter(wait time.Duration) {
	i.Due.parked(wait)
	i.Poller.Nudge()
}

// slotFree is called when a slot in a lane has become free. It wakes the poller if the latest claim left jobs behind, or if other pods are
// waiting for the slot.
func (i *Identity) slotFree(lane string) {
	if i.backlog.slotFreed() || i.Lanes.Overdue(lane) {
		i.wakeForSlot()
	}
}

// wakeForSlot requests a claim because a slot is free. Unlike Wake, it does not suggest that more urgent jobs may have arrived.
func (i *Identity) wakeForSlot() {
	i.look.Store(true)
	i.Poller.Wake()
}

// StopClaims prevents the engine from starting more jobs.
func (i *Identity) StopClaims() { i.Closing.Store(true) }

// WaitIdle blocks until no runs are left, ctx ends or over is closed. It reports whether no runs are left.
func (i *Identity) WaitIdle(ctx context.Context, over <-chan struct{}) bool {
	for {
		select {
		case <-over:
			return false
		case <-i.Runs.idle():
			if i.Runs.Len() == 0 {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// CloseRuns waits up to two seconds for all outcomes to be written, and then stops accepting runs.
func (i *Identity) CloseRuns() {
	i.Runs.WaitEmpty(2*time.Second, nil)
	i.Runs.Shut()
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

// These messages are logged through [telemetry.Damped].
const (
	heartbeatFailed = "heartbeat failed"
	notRegistered   = "could not register the pod again"
	NotListening    = "notifications are interrupted, polling continues"
	notHandedBack   = "could not hand back unknown jobs yet"
	recoveryFailed  = "recovery failed, retrying in a second"
	promotionFailed = "promotion failed, retrying in a second"
	admissionFailed = "admission of jobs with a subject failed, retrying"
	claimFailed     = "claim failed, retrying in a second"
	NotStarted      = "not started yet: waiting for a database that accepts writes"
	commitNotKnown  = "outcome of a commit is not known yet"
)

// Options configures an engine. See the Options of package runner.
type Options struct {
	PodID                              string                 // a random id if empty
	MayUse                             func(lane string) bool // all lanes if nil
	DeclaredLanes                      map[string]string      // by kind; they apply once the database has these lanes
	Name, Version                      string
	Slots                              int
	Disabled                           bool
	ClaimAhead                         bool
	PollEvery                          time.Duration
	LeaseFor, HeartbeatEvery           time.Duration
	ShutdownGrace, StuckAfter          time.Duration
	Timeout, StaleAfter                time.Duration
	MaxAttempts, MaxCrashes, MaxFanOut int
	DirectURL                          string
}

// Limits returns each handled kind's limits as JSON, which a pod stores in its row for operators to see.
func (i *Identity) Limits() json.RawMessage {
	limits := map[string]job.KindLimits{}
	for _, name := range i.HandledKinds {
		k := i.Kinds[name]
		kindLimits := job.KindLimits{Timeout: job.Seconds(k.Timeout), MaxAttempts: cmp.Or(k.MaxAttempts, i.Opts.MaxAttempts), MaxCrashes: cmp.Or(k.MaxCrashes, i.Opts.MaxCrashes)}
		if k.StaleAfter != nil {
			after := job.Seconds(*k.StaleAfter)
			kindLimits.StaleAfter = &after
		}
		limits[name] = kindLimits
	}
	raw, _ := json.Marshal(limits) // numbers and strings can always be encoded
	return raw
}
