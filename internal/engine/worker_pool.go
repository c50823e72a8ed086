package engine

import (
	"sync/atomic"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// WorkerPool runs each item on a goroutine, so no item has to wait for a running one to finish. A goroutine whose item has returned leaves its
// stack, which has grown, to a later item: with a new goroutine for each item, short jobs would spend a third of their CPU time on growing
// the stack and on scanning it during garbage collection. There are as many goroutines as there have been items at the same time.
type WorkerPool[T any] struct {
	run     func(item T, goroutine uint64)
	next    chan T       // received from by idle goroutines
	waiting atomic.Int64 // items given but not started
	closed  chan struct{}
}

// NewWorkerPool returns a pool that calls run for each item, passing the goroutine's number (see [routine.Goroutine]).
func NewWorkerPool[T any](run func(item T, goroutine uint64)) *WorkerPool[T] {
	return &WorkerPool[T]{run: run, next: make(chan T), closed: make(chan struct{})}
}

// Give starts items. It does not block.
func (p *WorkerPool[T]) Give(items ...T) {
	p.waiting.Add(int64(len(items)))
	for _, item := range items {
		select {
		case p.next <- item:
		default:
			go p.work(item)
		}
	}
}

// Waiting reports whether any item has not started yet.
func (p *WorkerPool[T]) Waiting() bool { return p.waiting.Load() > 0 }

// work runs an item, and then later ones until the pool is closed. An item that calls runtime.Goexit ends only this goroutine.
func (p *WorkerPool[T]) work(item T) {
	for goroutine := routine.Goroutine(); ; {
		p.waiting.Add(-1)
		p.run(item, goroutine)
		var none T
		item = none // an idle goroutine must not keep its last item in memory
		select {
		case item = <-p.next:
		case <-p.closed:
			return
		}
	}
}

// Close ends the idle goroutines, and each of the others after its item.
func (p *WorkerPool[T]) Close() { close(p.closed) }
