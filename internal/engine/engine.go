package engine

import (
	"sync"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/poller"
)

// Engine runs and finishes one identity's jobs, and hands over to their next steps. Its poller finds the jobs. Engine itself renews the lease
// and applies the responses to heartbeats; everything else is left to its parts.
type Engine struct {
	*shared
	*submitter
	*executor
	*fanOuts

	history   historySeen    // the database history that heartbeats have reported
	comparing routine.Signal // requests a comparison of the claims with the table
	asked     chan []store.ClaimRequest
	Following following
	hurry     chan struct{} // closed to cut a drain's grace period short
	hurried   sync.Once
}

// New returns an engine for an identity. The engine handles no kinds until Handle is called.
func New(s identity.Services, o identity.Options, m member) *Engine {
	i := &shared{Identity: identity.New(s, o), Member: m, Kinds: map[string]*Handler{}, Runs: newRuns(), reread: routine.NewSignal()}
	x := &executor{shared: i}
	i.Poller = poller.New(i.Identity, m, x)
	x.workers = NewWorkerPool(x.runClaim)
	x.flusher = newFlusher(i, x.workers, x.afterFlush)
	x.leases = &claimTx{i, x.flusher.alive}
	x.groups = newGroups(newFlusher(i, x.workers, x.afterFlush), x.leases)
	x.intake = &submitter{shared: i, start: x.startInserted}
	x.fanOuts = &fanOuts{shared: i, intake: x.intake, Unsettled: unsettled{some: routine.NewSignal()}}
	return &Engine{
		shared: i, submitter: x.intake, executor: x, fanOuts: x.fanOuts, asked: make(chan []store.ClaimRequest, 1),
		hurry: make(chan struct{}), comparing: routine.NewSignal(),
	}
}
