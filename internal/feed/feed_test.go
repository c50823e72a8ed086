package feed

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/matryer/is"
)

// A client can subscribe while a poll of the tail hangs. If all streams are then cut, the last one that leaves stops the tail before it polls
// again.
func TestAClientThatSubscribesWhenAllStreamsAreCutGetsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		f := New(nil, Options{})
		ended := make(chan struct{})
		f.tail = &tail{f: f, cancel: func() { close(ended) }, ended: ended} // its poll hangs until it is stopped
		watching := f.bus.Listen(topic{aJob, 1}, room)
		joined := make(chan error, 1)
		go func() {
			_, _, err := f.join(t.Context(), topic{aJob, 2})
			joined <- err
		}()
		synctest.Wait()
		f.Interrupt()
		f.leave(watching)
		synctest.Wait()
		select {
		case err := <-joined:
			is.True(errors.Is(err, ErrStuck))
		default:
			t.Error("the client waits for a poll that no tail will make")
		}
	})
}
