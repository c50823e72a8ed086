package feed

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

// A client can subscribe while one of the tail's polls hangs. If all streams are then disconnected, the last one to leave stops the tail
// before the next poll.
func TestSubscribeDuringStreamDisconnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		f := New(nil, Options{})
		ended := make(chan struct{})
		f.tail = &tail{f: f, cancel: func() { close(ended) }, ended: ended} // its poll hangs until the tail is stopped
		watching := f.bus.Listen(topic{aJob, 1}, bufferedBatches)
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

// The API would mistake context.Canceled for a connection closed by the client.
func TestStoppedStreamPollError(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // never connects
	is.NoErr(err)
	defer pool.Close()
	s, err := store.New(t.Context(), pool, store.Options{Connections: 1})
	is.NoErr(err)
	defer s.Close()
	f := New(s, Options{})
	f.tail = &tail{f: f}
	f.bus.Listen(topic{aJob, 1}, bufferedBatches)
	polled := make(chan error, 1)
	f.joining = []chan error{polled}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	f.tail.pollOnce(stopped)
	is.Equal(<-polled, ErrStuck)
}
