package ui

import (
	"context"
	"sync"
	"time"
)

// shared is an answer that concurrent requests share: the first one reads it. A singleflight would not do. It would let a request for a
// fresh answer join a read that began before it, pass the first request's cancellation to all, and cache nothing.
type shared[T any] struct {
	mu    sync.Mutex
	value T
	until time.Time
}

// Pages share an answer for a little less than a second, the shortest polling interval of a page. They share a slow answer for
// longer, so that reads use at most a fifth of one connection's time.
const (
	sharedFor   = 900 * time.Millisecond
	sharedTimes = 5
)

// get returns the recent answer, or reads a new one; with fresh it always reads. Errors are not cached.
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
