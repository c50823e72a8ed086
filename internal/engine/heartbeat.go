package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// beatAgain is the delay before a failed heartbeat is retried.
const beatAgain = 500 * time.Millisecond

// beat renews the pod's lease until ctx ends. It retries a failed heartbeat early, because the first connections after a failover may still
// lead to the former primary.
func (e *Engine) beat(ctx context.Context) {
	ticker := time.NewTicker(e.Opts.HeartbeatInterval)
	defer ticker.Stop()
	var again <-chan time.Time
	for {
		inTurn := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			inTurn = true
		case <-again:
		case <-e.reread:
		}
		again = nil
		if !e.BeatOnce(ctx, inTurn) {
			again = time.After(min(beatAgain, e.Opts.HeartbeatInterval))
		}
		// This heartbeat was ahead of schedule. Frequent requests must not overload the database.
		if !inTurn && !routine.Sleep(ctx, fleet.Interval) {
			return
		}
	}
}

// ReadSettings requests an immediate heartbeat, which reads the settings of lanes, pods and the queue.
func (s *shared) ReadSettings() { s.reread.Set() }

// BeatOnce renews the lease, applies the response, and reports whether there was one. If counts is false, the heartbeat was sent ahead of
// schedule and does not count toward MayJudge.
func (e *Engine) BeatOnce(ctx context.Context, counts bool) (answered bool) {
	_ = failpoint.Hit(failpoint.HeartbeatSend)
	if !e.Lease.Registered() {
		if err := e.Member.Open(ctx); err != nil {
			e.Damped.Warn(ctx, notRegistered, telemetry.Err, e.DBError(err))
			return false
		}
		e.Damped.Over(ctx, notRegistered)
		e.Damped.Over(ctx, heartbeatFailed)
		e.Log.InfoContext(ctx, "pod registered again", telemetry.Pod, e.Opts.Name, telemetry.PodID, e.PodID())
		e.Wake()
		return true
	}
	sent := time.Now()
	// After the timeout, a new heartbeat on a fresh connection is more likely to get a response than the current one.
	lingering, release := routine.Linger(ctx, time.Second) // a stopping engine waits only for a short time
	defer release()
	asking, cancel := context.WithTimeout(lingering, max(e.Opts.HeartbeatInterval, e.Opts.LeaseDuration/3))
	defer cancel()
	podID := e.PodID()
	b, err := e.Member.Heartbeat(asking, podID)
	if err != nil {
		e.Lease.Missed()
		e.Unknown.Raise() // the server that responds next may lack the latest commits
		if ctx.Err() == nil {
			e.Damped.Warn(ctx, heartbeatFailed, telemetry.Err, e.DBError(err))
		}
		return false
	}
	e.Damped.Over(ctx, heartbeatFailed)
	if ctx.Err() != nil {
		return true // the engine is stopping, so its row may already be closed
	}
	if !b.Open {
		e.Member.LeaseLost(ctx)
		return e.Lease.Registered()
	}
	if e.Lease.Renewed(sent, b.Now, b.Left, counts) {
		e.Log.InfoContext(ctx, "pod trusts its lease again", telemetry.Pod, e.Opts.Name)
		e.Wake()
	}
	e.apply(b)
	e.Following.applied(sent)
	return true
}

// apply applies the response to a heartbeat.
func (e *Engine) apply(b store.Beat) {
	e.HeedHistory(b.History)
	e.SetPlace(b.Place)
	if e.Lanes.Apply(b) {
		e.Wake()
	}
	if e.Lanes.ApplyStale(b.Lanes) {
		e.Runs.Each(func(run *Run) { run.watchdog.Limit(e.inactivityTimeout(run)) })
	}
	e.Member.Apply(b)
	for _, c := range b.Cancels {
		if run := e.Runs.Find(c.JobID, c.Fence); run != nil {
			run.cancelFor(c.Reason)
		} else {
			e.dropAhead(c.JobID, c.Fence)
		}
	}
	e.ask(b.Requests)
	if e.Unknown.Due() {
		e.Wake()
	}
	e.comparing.Set()
}

// WatchTrust watches the lease. When the database has been unreachable for so long that other pods may take over, it cancels the handlers
// and calls over. Results that handlers have already returned are written once the database is back, unless the lease is lost.
func (e *Engine) WatchTrust(ctx context.Context, over func()) {
	for {
		left, open := e.Lease.Left()
		if open && left <= 0 {
			e.Log.WarnContext(ctx, "lease no longer trusted: handlers are cancelled", telemetry.Pod, e.Opts.Name)
			e.Runs.Each(func(run *Run) {
				if !run.handler.ContinueWithoutDatabase && !run.Settled.Load() {
					run.cancel(job.ErrLeaseLost)
				}
			})
			over()
		}
		var timer <-chan time.Time
		if open && left > 0 {
			timer = time.After(left)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.Lease.Changed():
		case <-timer:
		}
	}
}

// historySeen holds the database history that the latest heartbeat read. It is empty before the first heartbeat.
type historySeen struct {
	sync.Mutex
	id string
}

// HeedHistory records the database history that a heartbeat has read. If the history has changed, a standby was promoted or a backup was
// restored, and the latest commits may be missing. HeedHistory then makes this process discard and reread all state that depends on those
// commits, except for reserved ids, which the stores have already discarded.
func (e *Engine) HeedHistory(history string) {
	e.history.Lock()
	before := e.history.id
	e.history.id = history
	e.history.Unlock()
	if before == "" || before == history {
		return
	}
	e.Lanes.DropGrants()
	e.Marks.Drop()
	e.Unknown.Raise()
	e.Member.HistoryChanged()
}

// following tracks the latest heartbeat whose response was applied.
type following struct {
	mu   sync.Mutex
	sent time.Time     // when the latest applied heartbeat was sent
	news chan struct{} // closed when the next heartbeat is applied; nil if no caller is waiting
}

// applied records that the response to a heartbeat was applied.
func (f *following) applied(sent time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = sent
	if f.news != nil {
		close(f.news)
		f.news = nil
	}
}

// AppliedSince blocks until a heartbeat sent after the given moment has been applied, or ctx ends. It calls ask to request heartbeats.
func (f *following) AppliedSince(ctx context.Context, moment time.Time, ask func()) {
	for {
		f.mu.Lock()
		if f.sent.After(moment) {
			f.mu.Unlock()
			return
		}
		if f.news == nil {
			f.news = make(chan struct{})
		}
		news := f.news
		f.mu.Unlock()
		ask()
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// MaxStackBytes is the maximum size of a stack that a pod returns.
const MaxStackBytes = 64 << 10

// ask passes a heartbeat's list of unanswered requests to answerRequests. It replaces a list that is still waiting: that list is older, and its
// requests are in the new one unless they have been answered. It does not block.
func (e *Engine) ask(list []store.ClaimRequest) {
	select {
	case <-e.asked:
	default:
	}
	select {
	case e.asked <- list:
	default: // a concurrent heartbeat has just passed its list
	}
}

// answerRequests answers claim requests until ctx ends. It runs on a separate goroutine, because a heartbeat must not wait for stacks.
// Unanswered requests are redelivered by the next heartbeat.
func (e *Engine) answerRequests(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case list := <-e.asked:
			for _, asked := range list {
				if err := e.answer(ctx, asked); err != nil {
					e.Log.DebugContext(ctx, "could not answer an operator's request, retrying with the next heartbeat", telemetry.JobID, asked.JobID, telemetry.Err, e.DBError(err))
				}
			}
		}
	}
}

// answer answers a request. If the claim has not started yet, the request remains unanswered until a later heartbeat. So does a new
// priority if the next steps may already have been built with the old priority; once the run has ended, the operator's command changes
// those steps itself.
func (e *Engine) answer(ctx context.Context, asked store.ClaimRequest) error {
	run := e.Runs.Find(asked.JobID, asked.Fence)
	if run == nil {
		return nil
	}
	text := ""
	switch asked.What {
	case store.RequestPriority:
		if !run.niced.set(asked.Priority) {
			return nil
		}
	case store.RequestStack:
		if run.handler.Elsewhere {
			return nil
		}
		if text = StackOf(&run.goroutine); text == "" {
			return nil
		}
	default:
		return nil // a type of request that only later releases support
	}
	return store.AnswerRequest(ctx, e.Commands, asked.ID, text)
}

// StackOf returns the stack of the goroutine that is running a handler. The argument holds that goroutine's number, or 0 before the handler
// is called and after it returns. If the handler is not running, StackOf returns an empty string, because the goroutine may already be
// running another job.
func StackOf(handler *atomic.Uint64) string {
	goroutine := handler.Load()
	if goroutine == 0 {
		return ""
	}
	text := routine.StackOf(goroutine, MaxStackBytes)
	if handler.Load() != goroutine {
		return ""
	}
	return text
}
