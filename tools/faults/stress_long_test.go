//go:build long

package faults

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// stressFor is the duration of the stress, which exceeds two lease durations.
const stressFor = 60 * time.Second

// With the default lease, heartbeat and poll intervals, a pod under stress must not be declared dead by a healthy one.
func TestTheDefaultsHoldUnderStress(t *testing.T) {
	t.Parallel()
	for name, stress := range map[string]func(w *world, pod *pod) (relieve func()){
		"a twentieth of a processor": throttled,
		"all slots spinning":         spinning,
		"host's pool exhausted":      hoarded,
		"max_connections reached":    crowded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			server := pgtest.Server(t, "max_connections", "60")
			pgtest.Migrate(t, server.URL())
			w := newWorld(t, server.URL())
			stressed := w.start(podConfig{Name: "stressed", Defaults: true}, "")
			judge := w.start(podConfig{Name: "judge", Defaults: true, Slots: 1}, "")
			w.round(0) // opens all connections that the work needs
			w.waitMore(20*time.Second, 0, 10)
			relieve := stress(w, stressed)
			_ = pause(t.Context(), int(stressFor.Milliseconds()))
			relieve()
			w.settle()
			is.True(stressed.alive())
			is.True(judge.alive())
			is.Equal(read[int](w, `select count(*) from trapeze.job_event where event = 'pod.lapsed'`), 0)    // no pod was declared dead
			is.Equal(read[int](w, `select count(*) from trapeze.job_event where event = 'job.recovered'`), 0) // no job was taken over
			w.finish()
		})
	}
}

// throttled limits a busy pod to five milliseconds of CPU time in every hundred, like a CPU quota in the kernel.
func throttled(w *world, p *pod) (relieve func()) {
	for range 8 {
		w.submit(nap{Millis: 2000})
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = p.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(95 * time.Millisecond)
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// spinning fills every slot with a loop that ignores its context.
func spinning(w *world, p *pod) (relieve func()) {
	w.occupy(p, spin{Millis: int(stressFor.Milliseconds())})
	return func() {}
}

// hoarded makes handlers hold all of the host pool's connections.
func hoarded(w *world, p *pod) (relieve func()) {
	w.occupy(p, hoard{Millis: int(stressFor.Milliseconds())})
	return func() {}
}

// occupy submits nine jobs, which take all eight of the pod's slots and the other pod's only slot.
func (w *world) occupy(p *pod, args runner.Args) {
	w.t.Helper()
	for range 9 {
		w.submit(args)
	}
	pgtest.Wait(w.t, "all slots of "+p.name+" are taken", func() bool {
		return w.yes(`select count(*) = 8 from trapeze.live l join trapeze.pods p on p.id = l.pod where p.name = $1`, p.name)
	})
}

// crowded takes all of the server's remaining connections, including those that become free later.
func crowded(w *world, p *pod) (relieve func()) {
	for range 8 {
		w.submit(nap{Millis: 1000})
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var held []*pgx.Conn
	refused := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for full := false; ctx.Err() == nil; {
			conn, err := pgx.Connect(ctx, w.podURL)
			switch {
			case err == nil:
				held = append(held, conn)
				continue
			case !full && ctx.Err() == nil:
				full = true
				close(refused)
			}
			_ = pause(ctx, 50)
		}
	}()
	select {
	case <-refused:
	case <-time.After(20 * time.Second):
		w.t.Error("the server never runs out of connections")
	}
	return func() {
		cancel()
		<-done
		w.t.Logf("%d connections were taken", len(held))
		for _, conn := range held {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}
}
