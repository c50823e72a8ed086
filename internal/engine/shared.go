package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/poller"
)

// shared holds the state shared by all parts of the engine.
type shared struct {
	*identity.Identity
	*poller.Poller
	Member member
	Kinds  map[string]*Handler // all known kinds, which next steps may have
	Runs   *runs
	reread routine.Signal // requests an immediate heartbeat after a change in the settings of lanes, pods or the queue
}

// member is implemented by the identity that an engine works for.
type member interface {
	poller.Member
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
	// Cancel cancels a claim's handler if an engine in this process runs it.
	Cancel(c job.Lease, why job.Reason)
	// ClaimMissing tries to release a claim that is missing from the table, and reports whether it did. If not, the engine cancels the
	// handler.
	ClaimMissing(*Run) bool
	// ClaimsCompared is called after each comparison of the claims with the table.
	ClaimsCompared(context.Context)
}

// Handle sets the kinds of jobs that the engine claims. It must be called before the engine starts.
func (s *shared) Handle(kinds []string) { s.Identity.Handle(kinds, s.mayClaimAhead) }

// shortestLimit is the shortest timeout or stale limit with which a kind's jobs may be claimed ahead of time.
const shortestLimit = time.Second

// mayClaimAhead reports whether a kind's limits allow its jobs to be claimed ahead of time.
func (s *shared) mayClaimAhead(kind string) bool {
	if !s.Opts.ClaimAhead {
		return false
	}
	k, stale := s.Kinds[kind], s.Opts.InactivityTimeout
	if k.InactivityTimeout != nil {
		stale = *k.InactivityTimeout
	}
	return cmp.Or(k.MaxCrashes, s.Opts.MaxCrashes) != 1 && // with a limit of one, every crash must be counted
		(k.Timeout <= 0 || k.Timeout >= shortestLimit) && (stale <= 0 || stale >= shortestLimit)
}

// WaitIdle blocks until no runs are left, ctx ends or over is closed. It reports whether no runs are left.
func (s *shared) WaitIdle(ctx context.Context, over <-chan struct{}) bool {
	for {
		select {
		case <-over:
			return false
		case <-s.Runs.idle():
			if s.Runs.Len() == 0 {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// CloseRuns waits up to two seconds for all outcomes to be written, and then stops accepting runs.
func (s *shared) CloseRuns() {
	s.Runs.WaitEmpty(2*time.Second, nil)
	s.Runs.Shut()
}

// AddKnown adds the claims that this process is working on, including claims that a statement in flight may assign to it.
func (s *shared) AddKnown(known map[job.Lease]bool) {
	podID := s.PodID()
	for _, id := range s.InFlight.All() {
		known[job.Lease{JobID: id, Fence: 1, Pod: podID}] = true
	}
	s.Ahead.AddKnown(known) // added before Runs, because a claim that is starting is briefly in both
	s.Runs.Each(func(run *Run) { known[run.Lease] = true })
}

// Limits returns each handled kind's limits as JSON, which a pod stores in its row for operators to see.
func (s *shared) Limits() json.RawMessage {
	limits := map[string]job.KindLimits{}
	for _, name := range s.HandledKinds {
		k := s.Kinds[name]
		kindLimits := job.KindLimits{Timeout: job.Seconds(k.Timeout), MaxAttempts: cmp.Or(k.MaxAttempts, s.Opts.MaxAttempts), MaxCrashes: cmp.Or(k.MaxCrashes, s.Opts.MaxCrashes)}
		if k.InactivityTimeout != nil {
			after := job.Seconds(*k.InactivityTimeout)
			kindLimits.InactivityTimeout = &after
		}
		limits[name] = kindLimits
	}
	raw, _ := json.Marshal(limits) // numbers and strings can always be encoded
	return raw
}

// These messages are logged through [telemetry.Damped].
const (
	heartbeatFailed = "heartbeat failed"
	notRegistered   = "could not register the pod again"
	NotListening    = "notifications are interrupted, polling continues"
	NotStarted      = "not started yet: waiting for a database that accepts writes"
	commitNotKnown  = "outcome of a commit is not known yet"
)
