package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// When the network breaks, replies to committed statements get lost. This rarely happens when the server terminates sessions.
func TestConnectionsResetByTheNetworkLoseAndDoubleNothing(t *testing.T) {
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

// busy starts three pods that submit jobs themselves for a while, and adds load from outside. The returned stop function ends the load and
// checks that all pods are still alive.
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
