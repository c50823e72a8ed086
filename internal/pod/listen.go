package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/maintenance"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// listener is the pod's only direct connection: it hears notifications, and between two of them it lends its session to the maintenance,
// whose lead is a lock of that session. Its zero value is ready; [Pod.listen] opens the session.
type listener struct {
	mu   sync.Mutex
	wake context.CancelFunc      // ends the wait for a notification; nil: there is no session
	asks []func(*pgx.Conn) error // to be called on the session
	gone error                   // why there is no session
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
		case ctx.Err() != nil: // the caller is gone
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

// hears registers what ends the wait for a notification, which is about to begin: at once if the session is asked for.
func (l *listener) hears(wake context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake = wake; len(l.asks) > 0 {
		wake()
	}
}

// lend calls those who asked for the session, until an error of one ends it. It reports whether there was any.
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

// ends refuses those who ask for the session from here on, and those who wait for it.
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

// listen turns notifications into wake-ups until ctx ends. They are hints: whatever is lost, the next poll finds.
func (p *Pod) listen(ctx context.Context) {
	if p.Deaf() {
		return
	}
	for backoff := wait.NewBackoff(); ; {
		err := p.listenOnce(ctx, func() {
			backoff = wait.NewBackoff()
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
	defer func() {
		p.listener.ends(err)
		p.maintenance.SessionEnded() // before its lock is free, and another pod reports that it leads
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if !p.opts.Disabled { // else the session is for the maintenance alone
		if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{p.Commands.Channel()}.Sanitize()); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		p.Metrics.Listening.Set(1)
		p.Wake() // for notifications sent while the connection was down
	}
	connected()
	// Notifications are read as they come, and lead to looks as often as they may: whoever let them wait would go on looking
	// for minutes after a storm, and learn only then that the connection has ended.
	knock := wait.NewSignal()
	answering, stop := context.WithCancel(ctx)
	var door sync.WaitGroup
	door.Go(func() { p.answer(answering, knock) })
	defer door.Wait()
	defer stop()
	for {
		// Now and then, and when the pools were reset, a round trip shows that the connection still leads to the primary.
		hearing, cancel := context.WithTimeout(ctx, 30*time.Second)
		undo := context.AfterFunc(until, cancel)
		p.listener.hears(cancel)
		note, err := conn.WaitForNotification(hearing)
		quiet := err != nil && hearing.Err() != nil && ctx.Err() == nil && !conn.IsClosed()
		undo()
		cancel()
		if quiet {
			asked := false
			if asked, err = p.listener.lend(conn); err == nil && !asked {
				until = p.Commands.UntilReset()
				pinging, cancel := context.WithTimeout(ctx, 5*time.Second)
				err = p.Commands.CheckWrites(pinging, conn)
				cancel()
			}
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		if note != nil && note.Payload == store.Settings {
			p.readAnew()
			continue
		}
		knock.Set()
	}
}

// readAnew asks for a heartbeat of the pod and of each remote worker now.
func (p *Pod) readAnew() {
	p.ReadSettings()
	p.sessions().Each((*engine.Engine).ReadSettings)
}

// answer looks when somebody knocks, until ctx ends.
func (p *Pod) answer(ctx context.Context, knock wait.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-knock:
		}
		p.Feed.Wake()
		p.WakeForPeers()
		p.sessions().Each((*engine.Engine).WakeForPeers)
		if !wait.For(ctx, engine.MinWakeInterval) {
			return
		}
	}
}

// notifyOthers wakes the sessions of remote workers here, and asks for a wake-up of the other pods.
func (p *Pod) notifyOthers() {
	p.sessions().Each((*engine.Engine).WakeForPeers)
	if p.Deaf() {
		return
	}
	if !p.Lease.Registered() {
		// Not run, as in a program that only submits: nobody else sends it.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = p.Commands.Notify(ctx, p.Commands.Pool()) // a hint
		return
	}
	p.peers.Set()
}

// notifyPeers sends the wake-ups that were asked for, in transactions of their own: a commit with a notification takes a
// lock of the whole server.
func (p *Pod) notifyPeers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			p.lastWord(ctx)
			return
		case <-p.peers:
		}
		if err := p.Commands.Notify(ctx, p.Commands.Pool()); err != nil && ctx.Err() == nil {
			p.Log.DebugContext(ctx, "could not wake peers", telemetry.Err, p.DBError(err))
		}
		if !wait.For(ctx, engine.MinWakeInterval) {
			p.lastWord(ctx)
			return
		}
	}
}

// lastWord sends a wake-up that was asked for just before the end, as for the jobs that a shutdown hands back.
func (p *Pod) lastWord(ctx context.Context) {
	if !p.peers.Clear() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = p.Commands.Notify(ctx, p.Commands.Pool()) // a hint
}

// beatAfterReset sends a heartbeat when the pools were reset: its connection leads to the same address as theirs did.
func (p *Pod) beatAfterReset(ctx context.Context) {
	for seen := 0; ; {
		until := p.Heartbeats.UntilReset()
		if resets := p.Heartbeats.Resets(); resets != seen {
			seen = resets
			p.readAnew()
		}
		select {
		case <-ctx.Done():
			return
		case <-until.Done():
		}
	}
}
