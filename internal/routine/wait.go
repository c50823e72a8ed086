package routine

import (
	"context"
	"math/rand/v2"
	"time"
)

// All ways to wait except Signal observe a context, so that no goroutine keeps waiting after its owner is done.

// Signal tells a goroutine to act. Setting it several times before the goroutine acts has the same effect as setting it once. Receive from
// it in a select statement.
type Signal chan struct{}

// NewSignal returns a signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set sets the signal if it is not already set. It never blocks.
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

// Sleep blocks for d or until ctx is cancelled. It reports whether ctx is still active.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Backoff waits between attempts. The delay starts at 20 ms and doubles each time, up to Most. Jitter multiplies it by a factor between 0.5
// and 1.5. Backoff is not safe for concurrent use.
type Backoff struct {
	// Most is the maximum delay before jitter. The default is 1s; values below 20ms count as 20ms.
	Most time.Duration
	// Tries is the number of calls to Wait.
	Tries int

	next time.Duration
}

// NewBackoff returns a backoff with the default limit.
func NewBackoff() *Backoff { return &Backoff{} }

// Wait blocks until it is time for the next attempt. It reports whether ctx is still active.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.Tries++
	delay := max(b.next, 20*time.Millisecond)
	most := b.Most
	if most <= 0 {
		most = time.Second
	}
	b.next = min(2*delay, most)
	return Sleep(ctx, time.Duration(float64(delay)*(0.5+rand.Float64()))) // #nosec G404 -- jitter
}

// Linger returns a context that is cancelled the given time after ctx is cancelled.
func Linger(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = Sleep(longer, after)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}
