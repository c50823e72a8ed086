//go:build long

package host_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteWorkerOfPausedQueue(t *testing.T) {
	is := is.New(t)
	r, w := served(t, 1, runner.Options{}) // the only slot is in use, so no claim is in flight when the queue is paused
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	_, err := r.Admin("ops").Pause(t.Context())
	is.NoErr(err)
	is.Equal(w.beats(t, r)[a.ID].Cause, nil) // running jobs continue
	_, err = w.reports(t, r, a, nil, nil)
	is.NoErr(err)
	id := foreign(t, r, podtest.RawArgs("far"))
	select {
	case <-w.sent:
		t.Fatal("a job was sent while the queue was paused")
	case <-time.After(1500 * time.Millisecond):
	}
	_, err = r.Admin("ops").Resume(t.Context())
	is.NoErr(err)
	is.Equal(w.takes(t, r).ID, id)
}
