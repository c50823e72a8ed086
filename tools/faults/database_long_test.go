//go:build long

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestPostgresRestartUnderLoad(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	w := newWorld(t, server.URL())
	stop := w.busy(8 * time.Second)
	for range 5 {
		before := w.ended()
		is.NoErr(server.Restart(t.Context(), "immediate")) // crashes the server as a power failure would
		w.waitMore(15*time.Second, before, 100)            // until jobs finish again
	}
	stop()
	w.finish()
}

func TestConnectionsTerminatedRepeatedly(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	stop := w.busy(cutFor)
	const terminateSQL = `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where datname = current_database() and application_name <> $1 and pid <> pg_backend_pid()`
	cut := 0
	for end := time.Now().Add(cutFor); time.Now().Before(end); {
		cut += read[int](w, terminateSQL, watcher)
		_ = pause(t.Context(), 500)
	}
	w.waitMore(15*time.Second, w.ended(), 100)
	stop()
	w.finish()
	t.Logf("%d connections were terminated", cut)
	is.True(cut > 4*int(cutFor.Seconds())) // connections were terminated
}

// When the network breaks, replies to committed statements get lost, which rarely happens when the server terminates sessions.
func TestConnectionsResetByNetwork(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	w := newWorldBehind(t, url, proxy.URL())
	stop := w.busy(cutFor)
	for end := time.Now().Add(cutFor); time.Now().Before(end); {
		proxy.Reset()
		_ = pause(t.Context(), 400)
	}
	w.waitMore(15*time.Second, w.ended(), 100)
	stop()
	w.finish()
}

// busy starts three pods that submit jobs themselves for a while, and adds load from outside. stop ends the load and checks that all pods
// are still alive.
func (w *world) busy(submitFor time.Duration) (stop func()) {
	w.t.Helper()
	for n := range 3 {
		w.start(podConfig{Name: fmt.Sprint("pod-", n), SubmitFor: submitFor}, "")
	}
	unload := w.load(3, 100*time.Millisecond)
	w.waitMore(15*time.Second, 0, 30)
	return func() {
		w.t.Helper()
		unload()
		for _, p := range w.pods {
			if !p.alive() {
				w.t.Errorf("%s gave up: %s", p.name, p.cmd.ProcessState)
			}
		}
	}
}
