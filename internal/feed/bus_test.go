package feed

import (
	"errors"
	"sync"
	"testing"

	"github.com/matryer/is"
)

func TestBusTopicDelivery(t *testing.T) {
	is := is.New(t)
	b := NewBus[string, int]()
	first, second, other := b.Listen("a", 2), b.Listen("a", 2), b.Listen("b", 2)
	b.Publish("a", 1)
	b.Publish("b", 2)
	is.Equal(<-first.Queue(), 1)
	is.Equal(<-second.Queue(), 1)
	is.Equal(<-other.Queue(), 2)
	b.Publish("nobody", 3) // publishing to a topic without listeners is allowed
}

func TestBusSlowListener(t *testing.T) {
	is := is.New(t)
	b := NewBus[string, int]()
	slow, quick := b.Listen("a", 2), b.Listen("a", 8)
	for i := range 5 {
		b.Publish("a", i) // Publish does not wait for a reader
	}
	var got []int
	for m := range slow.Queue() {
		got = append(got, m)
	}
	is.Equal(got, []int{0, 1})              // the messages that fit into the queue
	is.True(errors.Is(slow.Err(), ErrSlow)) // the listener learns the reason
	is.Equal(len(quick.Queue()), 5)         // the other listener has all messages
	slow.Close()                            // no longer has any effect
	quick.Close()
	is.Equal(b.Topics(), []string{}) // no listeners are left
	is.True(len(quick.Queue()) == 5) // queued messages can still be read
	closing := errors.New("closing")
	last := b.Listen("a", 1)
	b.CutAll(closing)
	_, open := <-last.Queue()
	is.True(!open)                          // the listener is disconnected
	is.True(errors.Is(last.Err(), closing)) // Err returns the reason
}

func TestBusConcurrentListeners(t *testing.T) {
	is := is.New(t)
	b := NewBus[int, int]()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 500 {
				l := b.Listen(i%3, 1)
				select {
				case <-l.Queue():
				default:
				}
				l.Close()
			}
		})
		all.Go(func() {
			for i := range 500 {
				b.Publish(i%3, i)
			}
		})
	}
	all.Wait()
	is.Equal(len(b.Topics()), 0) // no listeners are left
}
