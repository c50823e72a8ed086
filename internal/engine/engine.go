package engine

import (
	"sync"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/poller"
)

// Engine claims, runs and finishes one identity's jobs, and hands over to their next steps. The identity is a pod, or a remote worker's
// session on a pod. Engine itself renews the lease and applies the responses to heartbeats; everything else is left to its parts.
type Engine struct {
	Identity
	*submitter
	*executor
	*fanOuts
	claims  *claimer
	sweeper *sweeper

	history   historySeen    // the database history that heartbeats have reported
	comparing routine.Signal // requests a comparison of the claims with the table
	asked     *requests
	Following following
	reread    routine.Signal // requests an immediate heartbeat after a change in the settings of lanes, pods or the queue
	hurry     chan struct{}  // closed to cut a drain's grace period short
	hurried   sync.Once
}

// New returns an engine for an identity. The engine handles no kinds until Handle is called.
func New(s Services, o Options, m member) *Engine {
	e := &Engine{
		Identity: Identity{
			Services: s, Opts: o, Member: m, Kinds: map[string]*Handler{}, handled: handled{Handled: map[string]bool{}, HandledKinds: []string{}},
			Lanes: slots.NewLanes(o.Slots, o.MayUse), Marks: &slots.Marks{}, ahead: slots.NewAhead(), Lease: fleet.NewLease(o.PodID), Runs: newRuns(),
		},
		reread: routine.NewSignal(), hurry: make(chan struct{}), comparing: routine.NewSignal(),
	}
	i := &e.Identity
	i.admit = &admitter{Identity: i, some: routine.NewSignal()}
	e.executor = &executor{Identity: i}
	e.asked = &requests{Identity: i, some: routine.NewSignal()}
	e.claims = &claimer{Identity: i, exec: e.executor}
	e.submitter = &submitter{Identity: i, start: e.startInserted, mark: e.claims.findMarks}
	e.fanOuts = &fanOuts{Identity: i, intake: e.submitter, Unsettled: unsettled{some: routine.NewSignal()}}
	e.workers = NewWorkerPool(e.runClaim)
	flusher := newFlusher(i, e.afterFlush, e.workers.Waiting)
	e.leases = &claimTx{i, flusher.alive}
	e.finisher = &finisher{Identity: i, newRun: e.NewRun, pass: e.passSlot, freed: e.executor.slotFree, intake: e.submitter, fanOuts: e.fanOuts, leases: e.leases, flusher: flusher}
	e.finisher.groups = newGroups(i, e.leases, e.afterFlush, e.workers.Waiting, e.finisher.endCommitted)
	e.sweeper = &sweeper{Identity: i, dueTimes: &i.Due, claims: e.claims}
	e.Poller = poller.New(e.sweeper, o.PollEvery)
	return e
}
