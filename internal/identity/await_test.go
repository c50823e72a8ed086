package identity

import (
	"log/slog"
	"testing"

	"github.com/matryer/is"
)

// A goroutine whose last caller has gone ends. It must not stop the goroutine that has been started for the next caller.
func TestEndedWaiterGoroutine(t *testing.T) {
	is := is.New(t)
	w := NewWaiters(nil, slog.New(slog.DiscardHandler), nil)
	old, now := &watch{}, &watch{}
	w.watch = now
	w.all[1] = map[*waiter]bool{{id: 1}: true}
	_, ok := w.ids(old, false)
	is.True(!ok)
	is.Equal(w.watch, now)
	ids, ok := w.ids(now, false)
	is.True(ok)
	is.Equal(ids, []int64{1})
	clear(w.all)
	_, ok = w.ids(now, false)
	is.True(!ok)
	is.Equal(w.watch, nil) // the next caller starts another goroutine
}
