package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/await"
	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/pool"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/tracing"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/poller"
)

// Engine claims, executes, finishes and hands on the jobs of one identity: a pod, or the session of a remote worker on a pod. It keeps the
// lease and applies what heartbeats report; its parts do the rest.
type Engine struct {
	Identity
	*submitter
	*executor
	*fanOuts
	claims  *claimer
	ends    *finisher
	sweeper *sweeper

	history   historySeen // of the database, as heartbeats report it
	comparing wait.Signal // asks for a comparison of the claims with the table
	Following following
	reread    wait.Signal // asks for a heartbeat now: lanes, pods or the gate are set otherwise
	hurry     chan struct{}
	hurried   sync.Once
}

// Identity is the pod or session that an engine works for, with the state that all parts of the engine share.
type Identity struct {
	Services
	Member member
	Opts   Options
	Kinds  map[string]*Kind // known kinds: a next step may be of any of them

	Handled      map[string]bool // kinds that it runs; fixed when it starts
	HandledKinds []string
	Lease        *lease
	Lanes        *slots.Lanes
	Marks        *slots.Marks
	Runs         *runs
	Closing      atomic.Bool // no job starts any more
	inFlight     inFlight
	Unknown      unknownOutcomes // a reply was lost: the table may give us jobs that we do not know

	Poller *poller.Poller
	look   atomic.Bool // something may be due, not only the next job of a freed subject
	Due    dueTimes
}

// Services are shared by the engines of a process.
type Services struct {
	Pool       *pgxpool.Pool // the host's: EnqueueTx, InTx, Job.Tx
	Store      *store.Store  // claims and finishes
	Commands   *store.Store  // submissions, commands and reads: they must not delay the former
	Heartbeats *store.Store  // heartbeats alone
	Log        *slog.Logger
	Damped     *telemetry.Damped
	Metrics    *telemetry.Metrics
	Tracing    tracing.Tracer
	Count      telemetry.Counters
	Waiters    *await.Waiters
	journal    *journal.Writer // of events and progress
}

// NewServices returns the Services of a process on its pools.
func NewServices(pool *pgxpool.Pool, main, front, heart *store.Store, log *slog.Logger, metrics *telemetry.Metrics, tracer trace.TracerProvider) Services {
	s := Services{
		Pool: pool, Store: main, Commands: front, Heartbeats: heart, Log: log, Damped: telemetry.NewDamped(log), Metrics: metrics,
		Tracing: tracing.Tracer{Provider: tracer}, Count: telemetry.NewCounters(metrics),
	}
	s.Waiters, s.journal = await.New(front, log, s.DBError), journal.NewWriter(front, log, s.DBError)
	return s
}

// New returns an engine of an identity that handles no kind yet.
func New(s Services, o Options, m member) *Engine {
	e := &Engine{
		Identity: Identity{
			Services: s, Opts: o, Member: m, Kinds: map[string]*Kind{}, Handled: map[string]bool{}, HandledKinds: []string{},
			Lanes: slots.NewLanes(o.Slots, o.PollEvery, o.MayUse), Marks: &slots.Marks{}, Lease: newLease(o.Boot), Runs: newRuns(),
		},
		reread: wait.NewSignal(), hurry: make(chan struct{}), comparing: wait.NewSignal(),
	}
	i := &e.Identity
	e.executor = &executor{Identity: i}
	e.claims = &claimer{Identity: i, exec: e.executor}
	e.submitter = &submitter{Identity: i, start: e.startInserted, mark: e.claims.mark}
	e.fanOuts = &fanOuts{Identity: i, intake: e.submitter, Unsettled: unsettled{some: wait.NewSignal()}}
	e.ends = &finisher{Identity: i, exec: e.executor, claims: e.claims, intake: e.submitter, fanOuts: e.fanOuts}
	e.ends.flusher = newFlusher(e.ends)
	e.ends.leases = &leaseTx{i, e.ends.flusher.alive}
	e.executor.claims, e.executor.ends, e.executor.leases, e.workers = e.claims, e.ends, e.ends.leases, pool.New(e.work)
	e.sweeper = &sweeper{i, e.claims}
	e.Poller = poller.New(e.sweeper, o.PollEvery)
	return e
}

// member is the identity that an engine works for.
type member interface {
	// Open opens the identity's row again after its lease was lost.
	Open(ctx context.Context) error
	// Heartbeat renews the lease and reads the settings and commands that the engine must apply.
	Heartbeat(ctx context.Context, boot string) (store.Beat, error)
	// Apply takes the state of the whole pod from a heartbeat.
	Apply(store.Beat)
	// LeaseLost ends the identity, or replaces it by a new one, after others have closed its row.
	LeaseLost(ctx context.Context)
	// HistoryChanged drops what rests on commits that the database may have lost.
	HistoryChanged()
	// WakePeers wakes the other engines of the process and the other pods, for work that this one cannot take at once.
	WakePeers()
	// Cancel ends the handler of a claim if an engine of this process runs it.
	Cancel(claim job.Lease, why job.Reason)
	// Claims reads the claims that the table gives to the identity. ok is false when another process answers for them now.
	Claims(ctx context.Context, boot string) (held []store.Held, ok bool, err error)
	// ClaimMissing lets go of a claim that is missing in the table, and reports whether it did; otherwise its handler is cancelled.
	ClaimMissing(*Run) bool
	// ClaimsCompared runs after each comparison of the claims with the table.
	ClaimsCompared(context.Context)
	// MarkLimit returns how long low-water marks count at most, and wakes the engines that share them after that.
	MarkLimit() (most time.Duration, wake func())
}

// Handle sets the kinds whose jobs the engine claims. Call it before the engine starts.
func (i *Identity) Handle(kinds []string) {
	i.HandledKinds = kinds
	for _, name := range kinds {
		i.Handled[name] = true
	}
}

// Boot returns the boot id of the identity.
func (i *Identity) Boot() string { return i.Lease.id() }

// Deaf reports whether notifications are disabled: behind a pooler without a direct connection.
func (i *Identity) Deaf() bool { return i.Opts.DirectURL == "off" }

// WakePeers asks for a wake-up of the other pods, for work that this one cannot take at once.
func (i *Identity) WakePeers() { i.Member.WakePeers() }

// Slots returns the number of slots: none when the engine runs no jobs.
func (i *Identity) Slots() int {
	if i.Opts.Disabled {
		return 0
	}
	return i.Opts.Slots
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
	notRegistered   = "pod could not register again"
	NotListening    = "wake-ups by notification are interrupted: polling goes on"
	notHandedBack   = "jobs that this pod does not know of could not be handed back yet"
	recoveryFailed  = "recovery failed, next try in a second"
	promotionFailed = "promotion failed, next try in a second"
	claimFailed     = "claim failed, next try in a second"
	NotStarted      = "not started yet: waits for a database that accepts writes"
	commitNotKnown  = "what became of a commit is not known yet"
)
