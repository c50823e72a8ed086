package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// listen turns notifications into wake-ups until ctx ends. They are hints: whatever is lost, the next poll finds.
func (p *Pod) listen(ctx context.Context) {
	if p.Deaf() || p.opts.Disabled {
		return
	}
	for backoff := wait.NewBackoff(); ; {
		err := p.listenOnce(ctx, func() {
			backoff = wait.NewBackoff()
			p.Damped.Over(ctx, engine.NotListening)
		})
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

func (p *Pod) listenOnce(ctx context.Context, connected func()) error {
	until := p.Commands.UntilReset()
	conn, err := p.direct(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{p.Commands.Channel()}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	connected()
	p.Metrics.Listening.Set(1)
	p.Wake() // for notifications sent while the connection was down
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
		note, err := conn.WaitForNotification(hearing)
		quiet := hearing.Err() != nil && ctx.Err() == nil
		undo()
		cancel()
		if quiet && !conn.IsClosed() {
			until = p.Commands.UntilReset()
			pinging, cancel := context.WithTimeout(ctx, 5*time.Second)
			err = p.Commands.CheckWrites(pinging, conn)
			cancel()
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
			p.Log.DebugContext(ctx, "peers could not be woken", telemetry.Err, p.DBError(err))
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
