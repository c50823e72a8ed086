package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// listener manages the pod's only direct connection, which receives notifications. Between notifications, maintenance may borrow the
// session to hold the leader lock. As long as [Pod.listen] has not opened the session, gone must be set.
type listener struct {
	mu   sync.Mutex
	wake context.CancelFunc      // interrupts the wait for a notification; nil if there is no session
	asks []func(*pgx.Conn) error // functions to call on the session
	gone error                   // why there is no session
	all  bool                    // whether the session hears every notification, or only those for all pods
	idle int                     // number of heartbeats since the pod last had to hear every notification
}

// Do implements [maintenance.Session].
func (l *listener) Do(ctx context.Context, do func(*pgx.Conn) error) error {
	done := make(chan error, 1)
	l.mu.Lock()
	if l.wake == nil {
		defer l.mu.Unlock()
		return fmt.Errorf("%w: %w", maintenance.ErrNoSession, l.gone)
	}
	l.asks = append(l.asks, func(conn *pgx.Conn) (err error) {
		switch {
		case ctx.Err() != nil: // the caller has stopped waiting
		case conn == nil:
			err = fmt.Errorf("%w: %w", maintenance.ErrNoSession, l.gone)
		default:
			err = do(conn)
		}
		done <- err
		return err
	})
	l.wake()
	l.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setWake registers the function that interrupts the next wait for a notification. If callers are already waiting for the session, setWake
// calls that function immediately.
func (l *listener) setWake(wake context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake = wake; len(l.asks) > 0 {
		wake()
	}
}

// idleBeats is the number of heartbeats for which a pod keeps hearing every notification after it last had to.
const idleBeats = 5

// begin resets the state for a newly opened session.
func (l *listener) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all, l.idle = false, 0
}

// change returns whether the session must now hear every notification, and whether that differs from before.
func (l *listener) change() (all, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all = l.idle < idleBeats
	changed, l.all = l.all != all, all
	return all, changed
}

// needsAll records after each heartbeat whether the pod must hear every notification. If the session must change accordingly, needsAll
// interrupts its wait for a notification.
func (l *listener) needsAll(all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle++; all {
		l.idle = 0
	}
	if l.all != (l.idle < idleBeats) && l.wake != nil {
		l.wake()
	}
}

// lend calls the functions that are waiting for the session, until one of them returns an error. The asked result reports whether there
// were any.
func (l *listener) lend(conn *pgx.Conn) (asked bool, err error) {
	l.mu.Lock()
	asks := l.asks
	l.asks = nil
	l.mu.Unlock()
	for i, do := range asks {
		if err = do(conn); err != nil {
			l.mu.Lock()
			l.asks = append(asks[i+1:], l.asks...)
			l.mu.Unlock()
			break
		}
	}
	return len(asks) > 0, err
}

// ends makes Do return an error to all callers that are waiting for the session, and to all later ones.
func (l *listener) ends(why error) {
	l.mu.Lock()
	l.wake, l.gone = nil, why
	asks := l.asks
	l.asks = nil
	l.mu.Unlock()
	for _, do := range asks {
		_ = do(nil)
	}
}

// listen turns notifications into wake-ups until ctx is cancelled. Notifications are only hints. If one is lost, the next poll makes up for
// it.
func (p *Pod) listen(ctx context.Context) {
	if p.NotificationsDisabled() {
		return
	}
	for backoff := routine.NewBackoff(); ; {
		err := p.listenOnce(ctx, func() {
			backoff = routine.NewBackoff()
			p.Damped.Over(ctx, engine.NotListening)
		})
		p.listener.ends(err)
		p.Metrics.Listening.Set(0)
		if ctx.Err() != nil {
			return
		}
		p.Damped.Warn(ctx, engine.NotListening, telemetry.Err, err)
		if !backoff.Wait(ctx) {
			return
		}
	}
}

func (p *Pod) listenOnce(ctx context.Context, connected func()) (err error) {
	until := p.Commands.UntilReset()
	conn, err := p.direct(ctx)
	if err != nil {
		return err
	}
	p.listener.begin()
	defer func() {
		p.listener.ends(err)
		p.maintenance.SessionEnded() // must precede the release of the lock, after which another pod may lead
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if !p.opts.Disabled { // otherwise only maintenance uses the session
		if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{p.Commands.AllChannel()}.Sanitize()); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if err := p.hear(ctx, conn); err != nil {
			return err
		}
		p.Metrics.Listening.Set(1)
	}
	connected()
	for {
		// Every 30 s, and after a reset of the pools, a round trip checks that the connection still leads to the primary.
		hearing, cancel := context.WithTimeout(ctx, 30*time.Second)
		undo := context.AfterFunc(until, cancel)
		p.listener.setWake(cancel)
		for err == nil {
			var note *pgconn.Notification
			if note, err = conn.WaitForNotification(hearing); err == nil {
				p.notified(note)
			}
		}
		interrupted := hearing.Err() != nil && ctx.Err() == nil && !conn.IsClosed()
		undo()
		cancel()
		if !interrupted {
			return err
		}
		asked := false
		if asked, err = p.listener.lend(conn); err == nil && !asked {
			until = p.Commands.UntilReset()
			pinging, cancel := context.WithTimeout(ctx, 5*time.Second)
			err = p.Commands.CheckWrites(pinging, conn)
			cancel()
		}
		if err == nil && !p.opts.Disabled {
			err = p.hear(ctx, conn)
		}
		if err != nil {
			return err
		}
	}
}

// hearsAll reports whether the pod must hear every notification, for the sake of its own engine, a remote worker, another engine or a
// client that watches events. Other pods hear only of jobs that the front of the fleet has left behind, because reading a notification costs a
// pod about 0.1 ms of CPU time (ADR 0046). The cost to the database is the same in both cases.
func (p *Pod) hearsAll() bool {
	all := p.HearsAll() || p.Feed.Watched() || p.laneEngines.listen()
	p.sessions().Each(func(e *engine.Engine) { all = all || e.HearsAll() })
	return all
}

// hear starts or stops listening to every notification, as recent heartbeats require.
func (p *Pod) hear(ctx context.Context, conn *pgx.Conn) error {
	all, changed := p.listener.change()
	if !changed {
		return nil
	}
	verb := "unlisten "
	if all {
		verb = "listen "
	}
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := conn.Exec(asking, verb+pgx.Identifier{p.Commands.Channel()}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if all { // notifications may have been missed before
		p.WakeDue()
		p.sessions().Each((*engine.Engine).WakeDue)
	}
	return nil
}

// notified handles a notification. It must not block. Otherwise, in a storm of notifications, the pod would keep reading for minutes before
// noticing that the connection has ended.
func (p *Pod) notified(note *pgconn.Notification) {
	p.Metrics.Notifications.Inc()
	if note.Payload == store.Settings {
		p.requestHeartbeats()
		return
	}
	if podID, lane, ok := store.ParseSlots(note.Payload); ok {
		p.HearSlots(podID, lane)
		p.sessions().Each(func(e *engine.Engine) { e.HearSlots(podID, lane) })
		return
	}
	up := fleet.ParseUp(note.Payload, note.PID, note.Channel == p.Commands.AllChannel())
	p.Feed.Wake()
	p.Hear(up)
	p.laneEngines.hear(up)
	p.sessions().Each(func(e *engine.Engine) { e.Hear(up) })
}

// requestHeartbeats requests immediate heartbeats from the pod's engine and from each remote worker's session.
func (p *Pod) requestHeartbeats() {
	p.ReadSettings()
	p.sessions().Each((*engine.Engine).ReadSettings)
}

// notifyOthers wakes the sessions of this pod's remote workers, the functions registered with OnWake, and the other pods.
func (p *Pod) notifyOthers() {
	p.sessions().Each((*engine.Engine).Wake)
	p.laneEngines.wake()
	p.notify(p.front)
}

// notify sends a wake-up to other pods. In a program that only submits jobs and may exit at any time, notify does not return until the
// wake-up has been sent. Wake-ups in quick succession are merged, and [Pod.Run] and [Pod.Close] send any delayed wake-up before they return.
func (p *Pod) notify(pods *fleet.Sender) {
	if !p.NotificationsDisabled() {
		pods.Send(!p.runs.Load())
	}
}

// sendWakeUp notifies the other pods. It does so in a separate transaction, because the commit of a notification takes a server-wide lock.
func (p *Pod) sendWakeUp(channel string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := store.NotifyLate(ctx, p.Commands.Pool(), channel, p.Late.Take()); err != nil {
		p.Log.DebugContext(ctx, "could not wake peers", telemetry.Err, p.DBError(err)) // a poll finds the jobs
	}
}

// beatAfterReset requests a heartbeat after each reset of the pools, because the heartbeat's connection uses the same address.
func (p *Pod) beatAfterReset(ctx context.Context) {
	for seen := 0; ; {
		until := p.Heartbeats.UntilReset()
		if resets := p.Heartbeats.Resets(); resets != seen {
			seen = resets
			p.requestHeartbeats()
		}
		select {
		case <-ctx.Done():
			return
		case <-until.Done():
		}
	}
}
