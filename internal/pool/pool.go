// Package pool runs work on goroutines that are used again. The engine runs its handlers on one [Pool].
package pool

import (
	"slices"
	"sync"
	"time"
)

// idleFor is how long a goroutine without work waits for some before it ends.
const idleFor = time.Second

// Pool runs items, each on a goroutine. No item waits for another one that runs: a goroutine that takes an item while more are queued first
// starts another goroutine for those. So a short item leaves its goroutine, whose stack has grown already, to the next item, and a long one
// has a goroutine to itself. A new goroutine for every item costs a short job a third of its processor time: its stack is grown once, and
// scanned with every collection.
type Pool[T any] struct {
	run func(T)

	mu       sync.Mutex
	queue    []T
	head     int             // of queue
	starting bool            // a goroutine was started or woken, and has not taken an item yet
	idle     []chan struct{} // wake the idle goroutines, the latest last
	closed   bool
	idlers   sync.WaitGroup
}

// New returns a pool that calls run for each item.
func New[T any](run func(T)) *Pool[T] { return &Pool[T]{run: run} }

// Give runs items. It does not block.
func (p *Pool[T]) Give(items ...T) {
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

// Waiting reports whether items are queued that do not run yet.
func (p *Pool[T]) Waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.head < len(p.queue)
}

// start starts or wakes a goroutine for the queue, unless one is starting already. Call it with mu held.
func (p *Pool[T]) start() {
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

// work runs items until none has come for a while. An item that ends its goroutine (runtime.Goexit) ends this one; the next item gets
// another.
func (p *Pool[T]) work() {
	called := make(chan struct{}, 1) // a second call comes only after take
	timer := time.NewTimer(idleFor)
	defer timer.Stop()
	for started := true; ; {
		item, ok, rest := p.take(started, called)
		if started = false; ok {
			p.run(item)
			continue
		}
		if !rest {
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

// take returns the next item, having started a goroutine for those behind it; or notes that its caller is idle. After Close nothing is.
func (p *Pool[T]) take(started bool, called chan struct{}) (item T, ok, rest bool) {
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

// leave ends an idle wait, unless its goroutine has just been called.
func (p *Pool[T]) leave(called chan struct{}) bool {
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

// Close ends the idle goroutines and returns when they have ended; the others end after their item.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	for _, called := range p.idle {
		called <- struct{}{}
	}
	p.idle = nil
	p.mu.Unlock()
	p.idlers.Wait()
}
