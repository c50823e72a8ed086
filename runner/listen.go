package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// wakesApart is the least time between two sweeps that notifications cause, and between two notifications that we send:
// a storm of them is one look.
const wakesApart = 50 * time.Millisecond

// deaf reports whether notifications are off: behind a pooler without a direct connection.
func (r *engine) deaf() bool { return r.opts.DirectURL == "off" }

// listen turns notifications into wake-ups until ctx ends. They are hints: whatever is lost, the next poll finds.
func (r *Runner) listen(ctx context.Context) {
	if r.deaf() || r.opts.Disabled {
		return
	}
	for backoff := wait.NewBackoff(); ; {
		err := r.listenOnce(ctx, func() {
			backoff = wait.NewBackoff()
			r.damped.over(ctx, notListening)
		})
		r.metrics.Listening.Set(0)
		if ctx.Err() != nil {
			return
		}
		r.damped.warn(ctx, notListening, telemetry.Err, err)
		if !backoff.Wait(ctx) {
			return
		}
	}
}

func (r *Runner) listenOnce(ctx context.Context, connected func()) error {
	until := r.front.UntilReset()
	conn, err := r.direct(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{r.front.Channel()}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	connected()
	r.metrics.Listening.Set(1)
	r.wake() // for notifications sent while the connection was down
	// Notifications are read as they come, and lead to looks as often as they may: whoever let them wait would go on looking
	// for minutes after a storm, and learn only then that the connection has ended.
	knock := wait.NewSignal()
	answering, stop := context.WithCancel(ctx)
	var door sync.WaitGroup
	door.Go(func() { r.answer(answering, knock) })
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
			until = r.front.UntilReset()
			pinging, cancel := context.WithTimeout(ctx, 5*time.Second)
			err = r.front.CheckWrites(pinging, conn)
			cancel()
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		if note != nil && note.Payload == store.Settings {
			r.readAnew()
			continue
		}
		knock.Set()
	}
}

// readSettings asks for a heartbeat now, which reads the settings of lanes, pods and the gate.
func (r *engine) readSettings() { r.reread.Set() }

// readAnew asks for a heartbeat of the pod and of each remote worker now.
func (r *Runner) readAnew() {
	r.readSettings()
	r.guests.each(func(g *Guest) { g.r.readSettings() })
}

// answer looks when somebody knocks, until ctx ends.
func (r *Runner) answer(ctx context.Context, knock wait.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-knock:
		}
		r.heard.Store(true)
		r.feed.Wake()
		r.wake()
		r.guests.wake()
		if !wait.For(ctx, wakesApart) {
			return
		}
	}
}

// wakePeers asks for a wake-up of the other pods, for work that this one cannot take at once.
func (r *engine) wakePeers() { r.member.wakePeers() }

// notifyOthers wakes the sessions of remote workers here, and asks for a wake-up of the other pods.
func (r *Runner) notifyOthers() {
	r.guests.wake()
	if r.deaf() {
		return
	}
	if !r.lease.registered() {
		// Not run, as in a program that only submits: nobody else sends it.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = r.front.Notify(ctx, r.front.Pool()) // a hint
		return
	}
	r.peers.Set()
}

// notifyPeers sends the wake-ups that were asked for, in transactions of their own: a commit with a notification takes a
// lock of the whole server.
func (r *Runner) notifyPeers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			r.lastWord(ctx)
			return
		case <-r.peers:
		}
		if err := r.front.Notify(ctx, r.front.Pool()); err != nil && ctx.Err() == nil {
			r.log.DebugContext(ctx, "peers could not be woken", telemetry.Err, r.dbError(err))
		}
		if !wait.For(ctx, wakesApart) {
			r.lastWord(ctx)
			return
		}
	}
}

// lastWord sends a wake-up that was asked for just before the end, as for the jobs that a shutdown hands back.
func (r *Runner) lastWord(ctx context.Context) {
	if !r.peers.Clear() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.front.Notify(ctx, r.front.Pool()) // a hint
}
