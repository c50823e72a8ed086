package runner

import (
	"context"
	"math/rand/v2"
	"time"
)

// pause is the wait between tries of something that the database did not answer: 20 ms doubling to 1 s, with jitter.
type pause struct {
	n    int
	wait time.Duration
}

func newPause() *pause { return &pause{wait: 20 * time.Millisecond} }

// linger returns a context that ends a while after ctx.
func linger(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = rest(longer, after)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// sleep waits and reports whether another try is worth it: false when ctx has ended.
func (p *pause) sleep(ctx context.Context) bool {
	p.n++
	timer := time.NewTimer(time.Duration(float64(p.wait) * (0.5 + rand.Float64()))) // #nosec G404 -- jitter
	defer timer.Stop()
	p.wait = min(2*p.wait, time.Second)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
