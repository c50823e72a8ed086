package runner

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/poller"
)

// engine claims, executes, finishes and hands on the jobs of one identity, which has a boot id, kinds, slots and a lease: a pod, or the
// session of a remote worker on a pod. Its [member] is that identity.
type engine struct {
	services
	member member
	opts   engineOptions
	kinds  map[string]*kind // that it knows: a next step may be of any of them

	mine    map[string]bool // kinds that it runs; fixed when it starts
	mineAll []string
	lease   *lease
	lanes   *slots.Lanes
	marks   *slots.Marks
	runs    *runs
	hands   *hands
	flights flights
	flusher *flusher

	poller     *poller.Poller
	look       atomic.Bool // something may be due, whatever its subject
	round      round       // of the poller alone
	looked     time.Time   // of the poller alone: the latest look at everything
	heard      atomic.Bool // other pods may have changed what we can have of limited lanes
	asksAgain  atomic.Bool // a look is to come, for what was not asked for again at once
	due        dueTimes
	freed      freedSubjects
	backlog    backlog
	unbalanced unbalanced

	doubt     doubts      // a reply was lost: the table may give us jobs that we do not know
	history   historySeen // of the database, as heartbeats have told
	comparing wait.Signal // asks for a comparison of the claims with the table
	following following
	reread    wait.Signal // asks for a heartbeat now: lanes, pods or the gate are set otherwise
	closing   atomic.Bool
	hurry     chan struct{}
	hurried   sync.Once
}

// services are what the engines of a process share.
type services struct {
	pool    *pgxpool.Pool // the host's: EnqueueTx, InTx, Job.Tx
	store   *store.Store  // claims and finishes
	front   *store.Store  // submissions, commands and reads: they must not delay the former
	heart   *store.Store  // heartbeats alone
	log     *slog.Logger
	damped  *damped
	metrics *telemetry.Metrics
	tracing tracing
	count   counts
	waiters *waiters
	journal *journal.Writer // of events and progress
}

// newServices returns the services of a process on its pools.
func newServices(pool *pgxpool.Pool, main, front, heart *store.Store, log *slog.Logger, metrics *telemetry.Metrics, tracer trace.TracerProvider) services {
	s := services{
		pool: pool, store: main, front: front, heart: heart, log: log, damped: newDamped(log), metrics: metrics,
		tracing: tracing{tracer}, count: newCounts(metrics),
	}
	s.waiters, s.journal = newWaiters(s), journal.NewWriter(front, log, s.dbError)
	return s
}

// newEngine returns an engine of an identity that handles no kind yet.
func newEngine(s services, o engineOptions, m member) *engine {
	e := &engine{
		services: s, opts: o, member: m, kinds: map[string]*kind{}, mine: map[string]bool{}, mineAll: []string{},
		lanes: slots.NewLanes(o.Slots, o.PollEvery, o.MayUse), marks: &slots.Marks{}, lease: newLease(o.Boot), runs: newRuns(),
		reread: wait.NewSignal(), hurry: make(chan struct{}), comparing: wait.NewSignal(),
	}
	e.hands, e.flusher = newHands(e.work), newFlusher(e)
	e.unbalanced.some = wait.NewSignal()
	e.poller = poller.New(net{e}, o.PollEvery)
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
	ClaimMissing(*run) bool
	// ClaimsCompared runs after each comparison of the claims with the table.
	ClaimsCompared(context.Context)
	// MarkLimit returns how long low-water marks count at most, and wakes the engines that share them after that.
	MarkLimit() (most time.Duration, wake func())
}

// handle sets the kinds whose jobs the engine claims. Call it before the engine starts.
func (e *engine) handle(kinds []string) {
	e.mineAll = kinds
	for _, name := range kinds {
		e.mine[name] = true
	}
}

// boot returns the boot id of the identity.
func (e *engine) boot() string { return e.lease.id() }

// deaf reports whether notifications are off: behind a pooler without a direct connection.
func (r *engine) deaf() bool { return r.opts.DirectURL == "off" }

// wakePeers asks for a wake-up of the other pods, for work that this one cannot take at once.
func (r *engine) wakePeers() { r.member.WakePeers() }

func (r *engine) slots() int {
	if r.opts.Disabled {
		return 0
	}
	return r.opts.Slots
}

// dbError counts an error of the database and passes it on.
func (r *services) dbError(err error) error {
	if class := store.Class(err); class != "" {
		r.metrics.DBErrors.WithLabelValues(class).Inc()
	}
	return err
}

// commandError is the error of a command: [job.ErrOutcomeUnknown] when nobody knows what came of it.
func (r *services) commandError(err error) error {
	if store.Unknown(err) {
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, r.dbError(err))
	}
	return r.dbError(err)
}
