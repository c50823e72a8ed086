package maintenance

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// role is a pod's role in the maintenance.
type role int

const (
	standby role = iota // another pod leads, so this one runs only overdue tasks
	leading             // this pod leads
	sharing             // the leader is unknown, so each task goes to the first pod that asks for it
)

// Session is a database session without a pooler, which a pod keeps open and also uses for other purposes.
type Session interface {
	// Do calls do with exclusive use of the session. If do returns an error, the session is closed and the pod is no longer the leader. If
	// there is no session, Do returns [ErrNoSession].
	Do(ctx context.Context, do func(*pgx.Conn) error) error
}

// ErrNoSession is returned by a [Session] that is not open.
var ErrNoSession = errors.New("no direct connection")

// leader tries to hold the maintenance lock in the pod's session, and tracks whether it does. The lock only avoids duplicate work: two pods
// may run the same task concurrently, and if the lock holder does not run a task, another pod does.
type leader struct {
	m *Maintenance

	mu     sync.Mutex
	held   bool
	alone  bool // there is no session
	warned bool // the missing session has been logged
}

// leadWithin is the timeout for each query about the leader lock.
const leadWithin = 5 * time.Second

// role returns this pod's role as of the latest check.
func (l *leader) role() role {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.held:
		return leading
	case l.alone:
		return sharing
	}
	return standby
}

// keep regularly checks whether this pod is the leader, until ctx is cancelled. This is how a leader notices that it has lost the lead, and
// how another pod takes over.
func (l *leader) keep(ctx context.Context) {
	defer l.drop()
	for until := l.m.o.Store.UntilReset(); l.rest(ctx, until); {
		until = l.m.o.Store.UntilReset()
		l.check(ctx)
	}
}

// rest waits until the next check is due or until is cancelled. It reports false if ctx has been cancelled.
func (l *leader) rest(ctx, until context.Context) bool {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(until, cancel)()
	_ = routine.Sleep(waiting, l.m.o.LeadEvery*8/10+rand.N(l.m.o.LeadEvery/5)) // #nosec G404 -- jitter
	return ctx.Err() == nil
}

// check checks whether this pod still leads, and tries to take the lead if it does not.
func (l *leader) check(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.m.o.Metrics.Leader.Set(map[bool]float64{true: 1}[l.held || l.alone && l.m.o.Trusted()]) }()
	if l.m.o.Session == nil {
		l.alone = true
		return
	}
	if l.held && l.has(ctx) {
		return
	}
	held, err := l.ask(ctx, l.m.o.Store.TakeLead)
	if l.alone = errors.Is(err, ErrNoSession); l.alone && !l.warned && ctx.Err() == nil {
		l.warned = true
		l.m.o.Log.WarnContext(ctx, "no direct connection to elect the maintenance leader: each task runs on the first pod that starts it",
			telemetry.Err, err)
	}
	if held && l.has(ctx) {
		l.held, l.warned = true, false
		l.m.o.Log.InfoContext(ctx, "elected maintenance leader", telemetry.Pod, l.m.o.Pod)
	}
}

// still checks that this pod is still the leader. Call it before each action.
func (l *leader) still(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held && l.has(ctx)
}

// has reports whether the session holds the lock. If not, or if the query fails, it records that the pod no longer leads.
func (l *leader) has(ctx context.Context) bool {
	has, err := l.ask(ctx, l.m.o.Store.HasLead)
	if err != nil || !has {
		l.dropLocked()
		return false
	}
	return true
}

// ask runs a query in the session.
func (l *leader) ask(ctx context.Context, question func(context.Context, *pgx.Conn) (bool, error)) (yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, leadWithin)
	defer cancel()
	answer := make(chan bool, 1) // Do may return before question has returned
	err = l.m.o.Session.Do(ctx, func(conn *pgx.Conn) error {
		yes, err := question(ctx, conn)
		answer <- yes
		return err
	})
	if err == nil {
		yes = <-answer
	}
	return yes, err
}

// dropLocked records that this pod no longer leads. The caller must hold mu.
func (l *leader) dropLocked() {
	l.held = false
	l.m.o.Metrics.Leader.Set(0)
}

// drop locks mu and calls [leader.dropLocked].
func (l *leader) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked()
}
