// Package pool runs work on goroutines that are reused. The engine runs its handlers on one [Pool].
package pool

import (
	"slices"
	"sync"
	"time"
)

// idleFor is how long a goroutine without work waits before it ends.
const idleFor = time.Second

// Pool runs items, each on a goroutine. No item waits for a running one: a goroutine that takes an item while more are queued first starts
// another goroutine for those. A short item then leaves its goroutine, with its grown stack, to the next item, and a long one has a
// goroutine to itself. A new goroutine for every item would cost a short job a third of its processor time, for growing the stack and
// scanning it in collections.
type Pool[T any] struct {
	run func(T)

	mu       sync.Mutex
	queue    []T
	head     int             // of queue
	starting bool            // a goroutine was started or woken, and has not taken an item yet
	idle     []chan struct{} // wake the idle goroutines, the most recent last
	closed   bool
	idlers   sync.WaitGroup
}

// New returns a pool that calls run for each item.
func New[T any](run func(T)) *Pool[T] { return &Pool[T]{run: run} }

// Give queues items to run. It does not block.
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

// Waiting reports whether queued items are not running yet.
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

// work runs items until none has arrived for idleFor. An item that ends its goroutine (runtime.Goexit) ends this one; the next item gets
// another.
func (p *Pool[T]) work() {
	called := make(chan struct{}, 1) // the next call comes only after take
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

// take returns the next item, after starting a goroutine for those behind it, or registers its caller as idle. After Close no goroutine
// becomes idle.
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

// Close ends the idle goroutines and returns when they have ended. The others end after their item.
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
