// Package wait holds the ways in which a goroutine waits: for a [Signal], for a time ([For]), between tries ([Backoff]), and a little
// longer than its context ([Linger]). Each watches a context, so that no wait outlasts its owner. Every package may use it; it imports
// none.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// Signal asks one goroutine to act. Signals that arrive before it acts are merged. Receive from it in a select.
type Signal chan struct{}

// NewSignal returns a signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set sets the signal, unless it is set already. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear reports whether the signal was set, and clears it.
func (s Signal) Clear() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}

// For blocks for d, or until ctx ends, and reports whether ctx is still open.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Backoff waits between tries: 20 ms, doubling up to Most, with jitter between half and one and a half times the delay. Not safe for
// concurrent use.
type Backoff struct {
	// Most is the longest delay, before jitter. Default 1s.
	Most time.Duration
	// Tries counts the calls of Wait.
	Tries int

	next time.Duration
}

// NewBackoff returns a backoff with the default limit.
func NewBackoff() *Backoff { return &Backoff{} }

// Wait blocks until it is time for another try, and reports whether ctx is still open.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.Tries++
	delay := max(b.next, 20*time.Millisecond)
	most := b.Most
	if most <= 0 {
		most = time.Second
	}
	b.next = min(2*delay, most)
	return For(ctx, time.Duration(float64(delay)*(0.5+rand.Float64()))) // #nosec G404 -- jitter
}

// Linger returns a context that ends a while after ctx.
func Linger(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = For(longer, after)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}
