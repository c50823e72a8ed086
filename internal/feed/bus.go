package feed

import (
	"errors"
	"sync"
)

// A bus distributes a publishing goroutine's messages to listeners in the same process. The publisher never waits for a listener. Each
// listener has a queue of fixed length, and is disconnected as soon as the queue is full. It can then subscribe again, but must get the
// messages that it missed from another source, because the bus does not repeat them.

// ErrSlow is the error returned to a listener that was disconnected for not keeping up.
var ErrSlow = errors.New("client too slow: disconnected")

// Bus distributes messages of type M to a topic's listeners. It is safe for concurrent use.
type Bus[T comparable, M any] struct {
	mu  sync.Mutex
	all map[T]map[*Listener[T, M]]struct{}
}

// NewBus returns a bus without listeners.
func NewBus[T comparable, M any]() *Bus[T, M] {
	return &Bus[T, M]{all: map[T]map[*Listener[T, M]]struct{}{}}
}

// Listener is a subscription to a topic.
type Listener[T comparable, M any] struct {
	bus   *Bus[T, M]
	topic T
	queue chan M
	err   error // why the listener was disconnected; set before the queue is closed
}

// Listen subscribes to a topic. The listener receives all messages published from then on, through a queue of the given length.
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

// Publish sends m to all of a topic's listeners, and disconnects those whose queues are full.
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

// CutAll disconnects all listeners.
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

// Topics returns the topics that have listeners, in no particular order.
func (b *Bus[T, M]) Topics() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	topics := make([]T, 0, len(b.all))
	for t := range b.all {
		topics = append(topics, t)
	}
	return topics
}

// Queue returns the channel that delivers the messages. If the listener is disconnected, the channel still delivers the queued messages,
// and is then closed.
func (l *Listener[T, M]) Queue() <-chan M { return l.queue }

// Err returns why the listener was disconnected. Call it only after the queue has been closed.
func (l *Listener[T, M]) Err() error { return l.err }

// Close ends the subscription without closing the queue. It has no effect on a listener that is already disconnected or closed.
func (l *Listener[T, M]) Close() {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	l.bus.forget(l)
}
