package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// idleFor is the time that an idle goroutine waits before it exits.
const idleFor = time.Second

// WorkerPool runs each item on a goroutine. No item has to wait for a running one to finish: a goroutine that takes an item while more are queued
// first starts another goroutine for the rest. A short item leaves its goroutine, and the stack that it has grown, to the next item,
// whereas a long item keeps its goroutine. With a new goroutine for each item, short jobs would spend a third of their CPU time on growing
// the stack and on scanning it during garbage collection.
type WorkerPool[T any] struct {
	run func(item T, goroutine uint64)

	mu       sync.Mutex
	queue    []T
	head     int             // index of the first item in queue
	starting bool            // a goroutine was started or woken but has not taken an item yet
	idle     []chan struct{} // wake channels of the idle goroutines, most recent last
	closed   bool
	idlers   sync.WaitGroup
}

// NewWorkerPool returns a pool that calls run for each item, passing the goroutine's number (see [routine.Goroutine]).
func NewWorkerPool[T any](run func(item T, goroutine uint64)) *WorkerPool[T] {
	return &WorkerPool[T]{run: run}
}

// Give queues items to run. It does not block.
func (p *WorkerPool[T]) Give(items ...T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head > len(p.queue)/2 {
		rest := copy(p.queue, p.queue[p.head:])
		clear(p.queue[rest:])
		p.queue, p.head = p.queue[:rest], 0
	}
	p.queue = append(p.queue, items...)
	p.start()
}

// Waiting reports whether any queued item has not started yet.
func (p *WorkerPool[T]) Waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.head < len(p.queue)
}

// start starts or wakes a goroutine for the queue, unless it is empty or a goroutine is already starting. The caller must hold mu.
func (p *WorkerPool[T]) start() {
	if p.starting || p.head == len(p.queue) {
		return
	}
	p.starting = true
	if n := len(p.idle); n > 0 {
		p.idle[n-1] <- struct{}{}
		p.idle = p.idle[:n-1]
		return
	}
	go p.work()
}

// work runs items until none has arrived for idleFor. If an item calls runtime.Goexit, that ends this goroutine, and the next item gets
// another one.
func (p *WorkerPool[T]) work() {
	called := make(chan struct{}, 1) // buffered for one wake-up; the next cannot follow before take
	timer := time.NewTimer(idleFor)
	defer timer.Stop()
	goroutine := routine.Goroutine()
	for started := true; ; {
		item, ok, idle := p.take(started, called)
		if started = false; ok {
			p.run(item, goroutine)
			continue
		}
		if !idle {
			return
		}
		timer.Reset(idleFor)
		select {
		case <-called:
		case <-timer.C:
			if p.leave(called) {
				return
			}
			<-called
		}
		p.idlers.Done()
		started = true
	}
}

// take returns the next item, after starting a goroutine for any items behind it. If there is none, it registers the calling goroutine as
// idle, unless the pool is closed.
func (p *WorkerPool[T]) take(started bool, called chan struct{}) (item T, ok, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if started {
		p.starting = false
	}
	if p.head == len(p.queue) {
		if p.closed {
			return item, false, false
		}
		p.idle = append(p.idle, called)
		p.idlers.Add(1)
		return item, false, true
	}
	item = p.queue[p.head]
	clear(p.queue[p.head : p.head+1])
	p.head++
	p.start()
	return item, true, false
}

// leave removes a goroutine from the idle list. It returns false if the goroutine has just been woken.
func (p *WorkerPool[T]) leave(called chan struct{}) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.idle, called)
	if at < 0 {
		return false
	}
	p.idle = slices.Delete(p.idle, at, at+1)
	p.idlers.Done()
	return true
}

// Close wakes the idle goroutines and waits until none is idle. Goroutines then exit once the queue is empty.
func (p *WorkerPool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	for _, called := range p.idle {
		called <- struct{}{}
	}
	p.idle = nil
	p.mu.Unlock()
	p.idlers.Wait()
}
