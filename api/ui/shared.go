package ui

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// shared holds a result that concurrent requests share; the first request reads it. A singleflight group would not work: a request for
// fresh data could join a read that began earlier, cancelling the first request would fail all the others, and nothing would be cached.
type shared[T any] struct {
	mu    sync.Mutex
	value T
	until time.Time
}

// Pages share a result for a little less than a second, the shortest interval at which a page's script refreshes it. A result that is slow
// to read is shared for longer, so that reads occupy at most a fifth of one connection's time.
const (
	sharedFor   = 900 * time.Millisecond
	sharedTimes = 5
)

// get returns the cached result if it is recent, or else reads a new one. If fresh is true, it always reads a new one. Errors are not
// cached.
func (s *shared[T]) get(ctx context.Context, fresh bool, read func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if !fresh && began.Before(s.until) {
		return s.value, nil
	}
	value, err := read(ctx)
	if err != nil {
		return value, err
	}
	now := time.Now()
	s.value, s.until = value, began.Add(max(sharedFor, sharedTimes*now.Sub(began)))
	return value, nil
}

// fresh reports whether a request must not get a shared result. The page's script sends such a request after a button press, so that the
// page shows the effect.
func fresh(r *http.Request) bool { return r.Header.Get("X-Fresh") != "" }
