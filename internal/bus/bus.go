// Package bus hands what one goroutine publishes to the many of this process that listen. Nobody waits for a listener: each has a
// queue of a fixed length, and one whose queue is full is cut off, at that moment and for good. It comes back by whatever it
// remembers of what it was given.
package bus

import (
	"errors"
	"sync"
)

// ErrSlow is why a listener was cut off that did not keep up.
var ErrSlow = errors.New("client too slow: disconnected")

// Bus fans messages M out to those who listen to a topic T. Its methods are safe for concurrent use.
type Bus[T comparable, M any] struct {
	mu  sync.Mutex
	all map[T]map[*Listener[T, M]]struct{}
}

// New returns a bus that nobody listens to.
func New[T comparable, M any]() *Bus[T, M] {
	return &Bus[T, M]{all: map[T]map[*Listener[T, M]]struct{}{}}
}

// Listener is somebody who listens to one topic.
type Listener[T comparable, M any] struct {
	bus   *Bus[T, M]
	topic T
	queue chan M
	err   error // why it was cut off; written before the queue is closed
}

// Listen gives whatever is published under a topic from now on a place in a queue of the given length.
func (b *Bus[T, M]) Listen(topic T, room int) *Listener[T, M] {
	l := &Listener[T, M]{bus: b, topic: topic, queue: make(chan M, room)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[topic] == nil {
		b.all[topic] = map[*Listener[T, M]]struct{}{}
	}
	b.all[topic][l] = struct{}{}
	return l
}

// Publish hands m to all who listen to a topic, and cuts off those whose queues are full.
func (b *Bus[T, M]) Publish(topic T, m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.all[topic] {
		select {
		case l.queue <- m:
		default:
			b.cut(l, ErrSlow)
		}
	}
}

// CutAll cuts off everybody.
func (b *Bus[T, M]) CutAll(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, listeners := range b.all {
		for l := range listeners {
			b.cut(l, why)
		}
	}
}

func (b *Bus[T, M]) cut(l *Listener[T, M], why error) {
	l.err = why
	close(l.queue)
	b.forget(l)
}

func (b *Bus[T, M]) forget(l *Listener[T, M]) {
	delete(b.all[l.topic], l)
	if len(b.all[l.topic]) == 0 {
		delete(b.all, l.topic)
	}
}

// Topics lists what somebody listens to, in no order.
func (b *Bus[T, M]) Topics() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	topics := make([]T, 0, len(b.all))
	for t := range b.all {
		topics = append(topics, t)
	}
	return topics
}

// Queue is where messages arrive. It is closed when the listener is cut off, behind what still fitted in.
func (l *Listener[T, M]) Queue() <-chan M { return l.queue }

// Err is why the listener was cut off: call it once the queue is closed.
func (l *Listener[T, M]) Err() error { return l.err }

// Close ends the listening. Closing one that was cut off, or was closed before, does nothing.
func (l *Listener[T, M]) Close() {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	l.bus.forget(l)
}
