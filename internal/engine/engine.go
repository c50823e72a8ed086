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

// engine claims, executes, finishes and hands on the jobs of one identity, which has a boot id, kinds, slots and a lease: a pod, or the
// session of a remote worker on a pod. Its [member] is that identity.
type Engine struct {
	Services
	Member member
	Opts   Options
	Kinds  map[string]*Kind // that it knows: a next step may be of any of them

	Handled      map[string]bool // kinds that it runs; fixed when it starts
	HandledKinds []string
	Lease        *lease
	Lanes        *slots.Lanes
	Marks        *slots.Marks
	Runs         *runs
	workers      *pool.Pool[*Run]
	flights      flights
	flusher      *flusher

	Poller     *poller.Poller
	look       atomic.Bool // something may be due, whatever its subject
	round      round       // of the poller alone
	looked     time.Time   // of the poller alone: the latest look at everything
	heard      atomic.Bool // other pods may have changed what we can have of limited lanes
	asksAgain  atomic.Bool // a look is to come, for what was not asked for again at once
	Due        dueTimes
	freed      freedSubjects
	backlog    backlog
	Unbalanced unbalanced

	Doubt     doubts      // a reply was lost: the table may give us jobs that we do not know
	history   historySeen // of the database, as heartbeats have told
	comparing wait.Signal // asks for a comparison of the claims with the table
	Following following
	reread    wait.Signal // asks for a heartbeat now: lanes, pods or the gate are set otherwise
	Closing   atomic.Bool
	hurry     chan struct{}
	hurried   sync.Once
}

// Services are what the engines of a process share.
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

// newServices returns the Services of a process on its pools.
func NewServices(pool *pgxpool.Pool, main, front, heart *store.Store, log *slog.Logger, metrics *telemetry.Metrics, tracer trace.TracerProvider) Services {
	s := Services{
		Pool: pool, Store: main, Commands: front, Heartbeats: heart, Log: log, Damped: telemetry.NewDamped(log), Metrics: metrics,
		Tracing: tracing.Tracer{Provider: tracer}, Count: telemetry.NewCounters(metrics),
	}
	s.Waiters, s.journal = await.New(front, log, s.DBError), journal.NewWriter(front, log, s.DBError)
	return s
}

// newEngine returns an engine of an identity that handles no kind yet.
func New(s Services, o Options, m member) *Engine {
	e := &Engine{
		Services: s, Opts: o, Member: m, Kinds: map[string]*Kind{}, Handled: map[string]bool{}, HandledKinds: []string{},
		Lanes: slots.NewLanes(o.Slots, o.PollEvery, o.MayUse), Marks: &slots.Marks{}, Lease: newLease(o.Boot), Runs: newRuns(),
		reread: wait.NewSignal(), hurry: make(chan struct{}), comparing: wait.NewSignal(),
	}
	e.workers, e.flusher = pool.New(e.work), newFlusher(e)
	e.Unbalanced.some = wait.NewSignal()
	e.Poller = poller.New(net{e}, o.PollEvery)
	return e
}

// member is the identity that an engine works for.
type member interface {
	// Open opens the identity's row again after its lease was lost.
	Open(ctx context.Context) error
	// Heartbeat renews the lease and reads what the engine must apply.
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

// handle sets the kinds whose jobs the engine claims. Call it before the engine starts.
func (e *Engine) Handle(kinds []string) {
	e.HandledKinds = kinds
	for _, name := range kinds {
		e.Handled[name] = true
	}
}

// boot returns the boot id of the identity.
func (e *Engine) Boot() string { return e.Lease.id() }

// deaf reports whether notifications are off: behind a pooler without a direct connection.
func (r *Engine) Deaf() bool { return r.Opts.DirectURL == "off" }

// wakePeers asks for a wake-up of the other pods, for work that this one cannot take at once.
func (r *Engine) WakePeers() { r.Member.WakePeers() }

func (r *Engine) Slots() int {
	if r.Opts.Disabled {
		return 0
	}
	return r.Opts.Slots
}

// dbError counts an error of the database and passes it on.
func (r *Services) DBError(err error) error {
	if class := store.Class(err); class != "" {
		r.Metrics.DBErrors.WithLabelValues(class).Inc()
	}
	return err
}

// commandError is the error of a command: [job.ErrOutcomeUnknown] when nobody knows what came of it.
func (r *Services) CommandError(err error) error {
	if store.Unknown(err) {
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, r.DBError(err))
	}
	return r.DBError(err)
}

// The troubles that are damped.
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
