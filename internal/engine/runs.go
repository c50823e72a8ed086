package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Run is a claim that this process is working on. A single goroutine runs its handler, and Settled ensures that only one goroutine writes
// the outcome. After a success, the flusher has the executor close the run.
type Run struct {
	work.Job // passed to the handler

	handler *Handler
	Ctx     context.Context
	cancel  context.CancelCauseFunc
	done    context.CancelFunc // stops the timeout's timer
	Settled atomic.Bool
	loss    loss
	Wrote   atomic.Bool   // the outcome is committed
	Ended   chan struct{} // closed when the handler has returned and the outcome is settled
	span    telemetry.Span
	ahead   ranAhead
	took    atomic.Int64    // how long the handler ran, in nanoseconds; 0 before it returns
	handed  time.Time       // when a submission or hand-off started the job; zero for jobs claimed by the poller
	undo    json.RawMessage // failure steps that the handler returned, or nil

	goroutine atomic.Uint64 // number of the goroutine that is running the handler, or 0
	watching  atomic.Bool   // watchStuck has been called
	niced     stepPriority

	turn     chan struct{} // holds an element while a transaction locks the lease, so that these transactions take turns
	watchdog routine.Watchdog
	Events   journal.Events
	progress journal.Progress
}

// Handler is a registered handler. Its types are erased on registration, so that running a job needs no reflection.
type Handler struct {
	Name                    string
	Timeout                 time.Duration
	MaxAttempts             int           // 0 means the default
	MaxCrashes              int           // 0 means the default
	PerKey                  int           // number of jobs that may run for each key; 0 means no limit
	StartWithin             time.Duration // time within which a job must start after it is due; 0 means no limit
	Backoff                 job.Backoff
	InactivityTimeout       *time.Duration // 0 means no limit; nil means the lane's setting or, if it has none, the pod's
	ContinueWithoutDatabase bool
	Elsewhere               bool // Run stands in for a handler in another process
	RequiresDatabase        bool
	OnFailure               []work.Step // failure steps for jobs that do not specify any
	Run                     func(ctx context.Context, j *work.Job) (*work.Outcome, error)
	RunSeconds              func(seconds float64) // records the duration of a run
	Ends                    *telemetry.KindEnds   // nil for a kind that only remote workers run
}

// stepPriority is the priority that an operator sets for a run's next steps. It is fixed once the run has begun to build its next steps,
// because some of them might already have the old priority.
type stepPriority struct {
	mu    sync.Mutex
	value *int // nil if no operator has set one
	built bool
}

// set sets the priority. It reports false if it is too late, because the next steps are already being built.
func (p *stepPriority) set(value *int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.built {
		return false
	}
	p.value = value
	return true
}

// take returns the priority for the next steps, which can no longer be changed after that.
func (p *stepPriority) take() *int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.built = true
	return p.value
}

// loss records how a claim was lost.
type loss struct {
	once sync.Once
	lost chan struct{} // closed when the lease is gone for good
	gone bool          // the job was deleted; set before lost is closed
}

// ranAhead is the state of a run that was claimed ahead of time or has passed its slot to another job.
type ranAhead struct {
	compared bool // compared with the table at least once; like noted, used only by the comparing goroutine
	noted    bool // its start time is stored in its row
	passed   bool // its slot was passed on, while its outcome is still being written
}

// journaled adapts a Run for its journal.
type journaled struct{ run *Run }

func (j journaled) ID() job.Lease         { return j.run.Lease }
func (j journaled) Lost() bool            { return j.run.IsLost() }
func (j journaled) Check(err error) error { return j.run.orGone(err) }

// lose cancels the context of the handler and its writes because the claim has been lost. The why argument is [job.ErrLeaseLost] or
// [job.ErrGone].
func (run *Run) lose(why error) {
	run.loss.once.Do(func() {
		run.loss.gone = errors.Is(why, job.ErrGone)
		close(run.loss.lost)
		run.cancel(why)
	})
}

// Loss returns why a claim was lost: [job.ErrGone] or [job.ErrLeaseLost].
func (run *Run) Loss() error {
	if run.IsLost() && run.loss.gone {
		return job.ErrGone
	}
	return job.ErrLeaseLost
}

// orGone adjusts the error from a handler's write. If the job was deleted, it also cancels the handler's context. If the write failed
// because the context was cancelled after the claim was lost, orGone adds the reason for the loss.
func (run *Run) orGone(err error) error {
	switch {
	case errors.Is(err, job.ErrGone):
		run.lose(job.ErrGone)
	case errors.Is(err, job.ErrLeaseLost) && run.IsLost() && run.loss.gone:
		return job.ErrGone
	case errors.Is(err, context.Canceled) && run.IsLost():
		return fmt.Errorf("%w: %w", run.Loss(), err)
	}
	return err
}

// started returns the time at which the handler was called, for a job that was claimed ahead of time. For other jobs, it returns the zero
// time, because their rows already contain the start time.
func (run *Run) started() (at time.Time) {
	if run.Claimed.Ahead {
		at = run.Claimed.ClaimedAt
	}
	return at
}

// waited returns how long a job had been due when it was claimed. Recovered jobs have no due time, so known is false for them.
func waited(c *store.Claimed) (wait time.Duration, known bool) {
	// The difference can be negative: a claim's now() is set before the statement is planned, but the claim sees jobs committed during
	// planning.
	return max(0, c.ClaimedAt.Sub(c.DueAt)), c.DueAt.Unix() > 0
}

// times returns how long the run waited to be claimed, and how long its handler ran.
func (run *Run) times() telemetry.RunTimes {
	t := telemetry.NoRun
	if wait, known := waited(run.Claimed); known {
		t.Wait = wait
	}
	if took := run.took.Load(); took > 0 {
		t.Run = time.Duration(took)
	}
	return t
}

func (run *Run) IsLost() bool {
	select {
	case <-run.loss.lost:
		return true
	default:
		return false
	}
}

func (run *Run) attrs() []any {
	c := run.Claimed
	return []any{telemetry.JobID, c.ID, telemetry.Kind, c.Kind, telemetry.Attempt, c.Attempt, telemetry.Fence, c.Fence,
		telemetry.Lane, c.Lane}
}

// runs holds the claims that this process is working on.
type runs struct {
	mu     sync.Mutex
	all    map[ClaimKey]*Run
	alone  int           // number of isolated runs among them
	empty  chan struct{} // closed while all is empty; replaced when a run is added
	closed bool
}

// ClaimKey identifies a claim. It need not include the owner, because a job never has the same fence twice.
type ClaimKey struct{ ID, Fence int64 }

func (run *Run) Key() ClaimKey { return ClaimKey{run.Lease.JobID, run.Lease.Fence} }

func newRuns() *runs {
	empty := make(chan struct{})
	close(empty)
	return &runs{all: map[ClaimKey]*Run{}, empty: empty}
}

// add adds a run, unless the engine has stopped.
func (s *runs) add(run *Run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if len(s.all) == 0 {
		s.empty = make(chan struct{})
	}
	s.all[run.Key()] = run
	if run.Claimed.Isolated {
		s.alone++
	}
	return true
}

func (s *runs) remove(run *Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[run.Key()] != run {
		return
	}
	delete(s.all, run.Key())
	if run.Claimed.Isolated {
		s.alone--
	}
	if len(s.all) == 0 {
		close(s.empty)
	}
}

func (s *runs) Shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (s *runs) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Each calls do for every run without holding the lock.
func (s *runs) Each(do func(*Run)) {
	s.mu.Lock()
	list := make([]*Run, 0, len(s.all))
	for _, run := range s.all {
		list = append(list, run)
	}
	s.mu.Unlock()
	for _, run := range list {
		do(run)
	}
}

// Find returns the run for a job with the given fence, or nil.
func (s *runs) Find(id, fence int64) *Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[ClaimKey{id, fence}]
}

// isolated reports whether an isolated job is running in this process.
func (s *runs) isolated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alone > 0
}

// idle returns a channel that is closed when no runs are left.
func (s *runs) idle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.empty
}

// WaitEmpty blocks until no runs are left, most has passed, or hurry is closed. It reports whether no runs are left.
func (s *runs) WaitEmpty(most time.Duration, hurry <-chan struct{}) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-s.idle():
		return true
	case <-timer.C:
	case <-hurry:
	}
	return s.Len() == 0
}

// mustBeHeld reports whether the job's row should name this pod as the holder. It reports false if the claim is lost or its outcome may
// already have been written.
func (run *Run) mustBeHeld() bool { return !run.Settled.Load() && !run.IsLost() }

// hasRun subtracts the time that a job has already run elsewhere from its timeout. It must be called before the run is shared with other
// goroutines.
func (run *Run) hasRun(before time.Duration) {
	if run.handler.Timeout <= 0 {
		return
	}
	timer, done := time.AfterFunc(run.handler.Timeout-before, func() { run.cancel(job.ErrTimeout) }), run.done
	run.done = func() { timer.Stop(); done() }
}

// nextPriority returns the priority for next steps that do not set one.
func (run *Run) nextPriority() int {
	if p := run.niced.take(); p != nil {
		return *p
	}
	return run.Claimed.Priority
}

// plannedSteps decodes the steps planned after the job. If an operator changed the chain's priority during the run, all of them are given
// the new priority.
func (run *Run) plannedSteps() (work.Plan, error) {
	plan, err := work.DecodePlan(run.Claimed.ID, run.Claimed.Planned)
	if p := run.niced.take(); p != nil {
		plan.SetPriority(p)
	}
	return plan, err
}
