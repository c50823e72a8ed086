package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/await"
	"github.com/trapeze-run/trapeze/internal/ends"
	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/lease"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/tracing"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/poller"
)

// Identity is the pod or session that an engine works for, with the state that all parts of the engine share.
type Identity struct {
	Services
	Member member
	Opts   Options
	Kinds  map[string]*Handler // known kinds: a next step may have any of them

	Handled      map[string]bool // kinds that it runs; fixed when it starts
	HandledKinds []string
	Lease        *lease.Lease
	Lanes        *slots.Lanes
	Marks        *slots.Marks
	Runs         *runs
	Closing      atomic.Bool // no job starts any more
	inFlight     inFlight
	Unknown      unknownOutcomes // a reply was lost: the table may assign jobs to us that we do not know

	Poller  *poller.Poller
	look    atomic.Bool // something may be due, not only the next job of a freed subject
	Due     dueTimes
	freed   freedSubjects            // whose next job the next claim looks for
	backlog backlog                  // whether the latest claim left jobs behind
	ahead   *slots.Ahead             // claims that wait for a slot
	took    map[string]*atomic.Int64 // nanoseconds of the latest runs of each handled kind, on average; 0: none
	news    atomic.Bool              // jobs may have come that are more urgent than those
}

// Services are shared by the engines of a process.
type Services struct {
	Pool       *pgxpool.Pool // the host's: EnqueueTx, InTx, Job.Tx
	Store      *store.Store  // claims and finishes
	Commands   *store.Store  // submissions, commands and reads, which must not delay claims and finishes
	Heartbeats *store.Store  // only heartbeats
	Log        *slog.Logger
	Damped     *telemetry.Damped
	Metrics    *telemetry.Metrics
	Tracing    tracing.Tracer
	Count      telemetry.Counters
	Ends       *ends.Ends // reports jobs that this process ended
	Waiters    *await.Waiters
	journal    *journal.Writer // writes events and progress
}

// NewServices returns the Services of a process on its pools.
func NewServices(pool *pgxpool.Pool, main, front, heart *store.Store, log *slog.Logger, metrics *telemetry.Metrics, tracer trace.TracerProvider, hooks ends.Hooks) Services {
	s := Services{
		Pool: pool, Store: main, Commands: front, Heartbeats: heart, Log: log, Damped: telemetry.NewDamped(log), Metrics: metrics,
		Tracing: tracing.Tracer{Provider: tracer}, Count: telemetry.NewCounters(metrics),
	}
	s.Ends = ends.New(metrics, hooks, log, s.Damped)
	s.Waiters, s.journal = await.New(front, log, s.DBError), journal.NewWriter(front, log, s.DBError)
	return s
}

// member is the identity that an engine works for.
type member interface {
	// Open opens the identity's row again after its lease was lost.
	Open(ctx context.Context) error
	// Heartbeat renews the lease and reads the settings and commands that the engine must apply.
	Heartbeat(ctx context.Context, boot string) (store.Beat, error)
	// Apply applies the state of the whole pod from a heartbeat.
	Apply(store.Beat)
	// LeaseLost ends the identity, or replaces it by a new one, after others have closed its row.
	LeaseLost(ctx context.Context)
	// HistoryChanged drops state that depends on commits that the database may have lost.
	HistoryChanged()
	// WakePeers wakes the other engines of the process and the other pods, for work that this one cannot take at once.
	WakePeers()
	// Cancel ends the handler of a claim if an engine of this process runs it.
	Cancel(c job.Lease, why job.Reason)
	// Claims returns the claims that the table assigns to the identity. ok is false if another process is responsible for them now.
	Claims(ctx context.Context, boot string) (held []store.Held, ok bool, err error)
	// ClaimMissing releases a claim that is missing in the table, and reports whether it did; otherwise its handler is cancelled.
	ClaimMissing(*Run) bool
	// ClaimsCompared runs after each comparison of the claims with the table.
	ClaimsCompared(context.Context)
	// MarkLimit returns the longest validity of low-water marks, and a function that wakes the engines that share them after that.
	MarkLimit() (most time.Duration, wake func())
}

// Handle sets the kinds whose jobs the engine claims. Call it before the engine starts.
func (i *Identity) Handle(kinds []string) {
	i.HandledKinds, i.took = kinds, map[string]*atomic.Int64{}
	for _, name := range kinds {
		i.Handled[name], i.took[name] = true, &atomic.Int64{}
	}
}

// Boot returns the boot id of the identity.
func (i *Identity) Boot() string { return i.Lease.ID() }

// Deaf reports whether notifications are disabled: behind a pooler without a direct connection.
func (i *Identity) Deaf() bool { return i.Opts.DirectURL == "off" }

// WakePeers wakes the other engines of this process and the other pods, for work that this one cannot take at once.
func (i *Identity) WakePeers() { i.Member.WakePeers() }

// Slots returns the number of slots: 0 if the engine runs no jobs.
func (i *Identity) Slots() int {
	if i.Opts.Disabled {
		return 0
	}
	return i.Opts.Slots
}

// Wake requests a claim of all due jobs.
func (i *Identity) Wake() {
	i.news.Store(true)
	i.look.Store(true)
	i.Poller.Wake()
}

// wakeAll wakes the poller here, the other engines and the other pods.
func (i *Identity) wakeAll() {
	i.Wake()
	i.WakePeers()
}

// wakeAfter records that a job was parked for a while, so that the poller claims it when it is due.
func (i *Identity) wakeAfter(wait time.Duration) {
	i.Due.parked(wait)
	i.Poller.Nudge()
}

// freeSubject adds the subject of a run that has ended to those whose next job the next claim takes. It reports whether the run had a
// subject. It does not wake the poller.
func (i *Identity) freeSubject(one *Run) bool {
	if one.Claimed.Subject == "" {
		return false
	}
	i.freed.add(store.Key{Kind: one.Claimed.Kind, Subject: one.Claimed.Subject})
	return true
}

// slotFree handles a lane's slot that has become free. It wakes the poller if the latest claim left jobs behind, or if the slot has to be
// given back to other pods.
func (i *Identity) slotFree(lane string) {
	if i.backlog.slotFreed() || i.Lanes.Overdue(lane) {
		i.wakeForSlot()
	}
}

// wakeForSlot asks for a claim because a slot is free: no job has come that could be more urgent than those that are claimed.
func (i *Identity) wakeForSlot() {
	i.look.Store(true)
	i.Poller.Wake()
}

// StopClaims keeps the engine from starting jobs.
func (i *Identity) StopClaims() { i.Closing.Store(true) }

// WaitIdle blocks until no claim is left, ctx ends or over is closed. It reports whether no claim is left.
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

// CloseRuns waits for the ends that are being written, and accepts no further claims.
func (i *Identity) CloseRuns() {
	i.Runs.WaitEmpty(2*time.Second, nil)
	i.Runs.Shut()
}

// DBError counts an error of the database and returns it.
func (s *Services) DBError(err error) error {
	if class := store.Class(err); class != "" {
		s.Metrics.DBErrors.WithLabelValues(class).Inc()
	}
	return err
}

// CommandError returns the error of a command: [job.ErrOutcomeUnknown] when its outcome is unknown.
func (s *Services) CommandError(err error) error {
	if store.Unknown(err) {
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, s.DBError(err))
	}
	return s.DBError(err)
}

// The messages of [telemetry.Damped].
const (
	heartbeatFailed = "heartbeat failed"
	notRegistered   = "could not register the pod again"
	NotListening    = "notifications are interrupted, polling continues"
	notHandedBack   = "could not hand back unknown jobs yet"
	recoveryFailed  = "recovery failed, retrying in a second"
	promotionFailed = "promotion failed, retrying in a second"
	claimFailed     = "claim failed, retrying in a second"
	NotStarted      = "not started yet: waiting for a database that accepts writes"
	commitNotKnown  = "outcome of a commit is not known yet"
)

// Options configure an engine: see the Options of package runner.
type Options struct {
	Boot                               string                 // empty: a random one
	MayUse                             func(lane string) bool // nil: all lanes
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

// Handler is a registered handler, whose types are erased once so that no job needs reflection.
type Handler struct {
	Name        string
	Timeout     time.Duration
	MaxAttempts int // 0: the default
	MaxCrashes  int // 0: the default
	Backoff     job.Backoff
	StaleAfter  *time.Duration // nil: the lane's setting, else the pod's; 0: off
	KeepRunning bool
	InDatabase  bool
	OnFailure   []work.Step // steps that follow the failure of a job without its own
	Run         func(ctx context.Context, j *work.Job) (*work.Outcome, error)
	RunSeconds  func(seconds float64) // records the duration of a run
	Ends        *telemetry.KindEnds   // nil: only remote workers have the kind
}
