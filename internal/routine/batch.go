package routine

import (
	"context"
	"sync"
)

// A Batcher has no timer: the first item is flushed immediately, and items that arrive during a flush are flushed together by the next one.
// In an idle process, an item costs one round trip, and in a busy one, batches fill up. A flush contains only items that were added before it
// started, so the result of a shared read is never older than the request.

// Batcher flushes items in batches. It is safe for concurrent use.
type Batcher[T, R any] struct {
	parallel int
	limit    int
	flush    func(items []T) ([]R, error)

	mu       sync.Mutex
	queue    []*call[T, R]
	flushing int // number of running flushes, at most parallel
}

// call represents an item that is queued or being flushed.
type call[T, R any] struct {
	item   T
	result R
	err    error
	done   chan struct{} // closed when result and err are set
}

// NewBatcher returns a batcher that runs at most parallel flushes concurrently, of at most limit items each. The flush function returns one result
// per item, in order, or an error for all items. It serves many callers and thus receives no context, so it must not block forever.
func NewBatcher[T, R any](parallel, limit int, flush func(items []T) ([]R, error)) *Batcher[T, R] {
	return &Batcher[T, R]{parallel: parallel, limit: limit, flush: flush}
}

// Do adds an item and returns its result. If ctx is cancelled first, Do returns the cancellation cause, and the item may still be flushed.
// If Do performs the flush itself, it does not return before the flush has ended.
func (b *Batcher[T, R]) Do(ctx context.Context, item T) (R, error) {
	c := &call[T, R]{item: item, done: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, c)
	leads := b.flushing < b.parallel
	if leads {
		b.flushing++
	}
	b.mu.Unlock()
	if leads && b.flushOnce() {
		go func() { // a caller performs a single flush, so that it does not wait for other callers' items
			for b.flushOnce() {
			}
		}()
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		select {
		case <-c.done:
		default:
			var none R
			return none, context.Cause(ctx)
		}
	}
	return c.result, c.err
}

// flushOnce flushes up to limit queued items, and reports whether any are left.
func (b *Batcher[T, R]) flushOnce() (more bool) {
	b.mu.Lock()
	n := min(len(b.queue), b.limit)
	calls := b.queue[:n:n]
	b.queue = b.queue[n:]
	b.mu.Unlock()
	if n > 0 {
		items := make([]T, n)
		for i, c := range calls {
			items[i] = c.item
		}
		results, err := b.flush(items)
		for i, c := range calls {
			if c.err = err; err == nil {
				c.result = results[i]
			}
			close(c.done)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.queue = nil // lets the garbage collector free the calls
		b.flushing--
		return false
	}
	return true
}
