package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// lookout reads what the table gives to remote workers. That is a pass over all that waits and runs, for no index has the pod in it: so
// that claims are cheap. When a pod has died, all its workers come to the others at once and each wants such a pass, several times: here
// those who ask while one is under way share the next.
type lookout struct {
	turn sync.Mutex // a pass is under way
	mu   sync.Mutex
	next *pass // that has not begun; nil: nobody asks
}

type pass struct {
	boots []string
	done  chan struct{} // closed when the following are set
	held  []store.Held
	err   error
}

// holder is [store.Store.Held].
type holder func(ctx context.Context, boots ...string) ([]store.Held, error)

// passWithin bounds a pass.
const passWithin = 30 * time.Second

// held lists what the table gives to a worker, read after it was asked for.
func (l *lookout) held(ctx context.Context, ask holder, boot string) ([]store.Held, error) {
	l.mu.Lock()
	p := l.next
	first := p == nil
	if first {
		p = &pass{done: make(chan struct{})}
		l.next = p
	}
	p.boots = append(p.boots, boot)
	l.mu.Unlock()
	if first {
		l.run(ctx, ask, p)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return slices.DeleteFunc(slices.Clone(p.held), func(h store.Held) bool { return h.Pod != boot }), p.err
}

// run does a pass for all who asked for it until it began; that the first of them goes does not break it off.
func (l *lookout) run(ctx context.Context, ask holder, p *pass) {
	l.turn.Lock()
	defer l.turn.Unlock()
	l.mu.Lock()
	l.next = nil
	boots := p.boots
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passWithin)
	defer cancel()
	p.held, p.err = ask(ctx, boots...)
	close(p.done)
}
