//go:build long

package host_test

import (
	"runtime"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestReconnectingWorkerStreamLeaks(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := podtest.Start(t, pool, runner.Options{}, noKinds)
	ends := func(w *far) {
		w.cut()
		<-w.session.Over()
		is.NoErr(w.session.Why()) // the worker ran no jobs, so the session ended with its stream
	}
	w := newFar()
	w.connect(t, r, 2, "far")
	ends(w)
	before := runtime.NumGoroutine()
	for range 100 {
		w.connect(t, r, 2, "far") // the same worker reconnects
		ends(w)
		other := newFar()
		other.connect(t, r, 2, "far")
		ends(other)
	}
	pgtest.Wait(t, "all goroutines that served them have ended", func() bool { return runtime.NumGoroutine() < before+20 })
}
