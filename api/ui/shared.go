package ui

import (
	"context"
	"sync"
	"time"
)

// shared is an answer that requests at about the same time share: the first one reads it. It is no singleflight, which would let a
// request that asks for a new answer join a read that began before it, would give the first one's cancellation to all, and keeps nothing.
type shared[T any] struct {
	mu    sync.Mutex
	value T
	until time.Time
}

// An answer is used for a little less than the second that a page waits at least between two looks, and longer where it took long:
// reading it takes at most a fifth of one connection's time.
const (
	sharedFor   = 900 * time.Millisecond
	sharedTimes = 5
)

// get returns the recent answer, or reads a new one; with fresh it always reads. An error is not kept.
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
