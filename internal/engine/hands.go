package engine

import (
	"slices"
	"sync"
	"time"
)

// handsRest is how long a goroutine without work waits for some before it ends.
const handsRest = time.Second

// hands are the goroutines that perform claims. No claim waits for another one's handler: whoever takes one while more
// wait has somebody come for those before it calls the handler. So a handler that returns at once leaves its goroutine,
// whose stack has grown already, to the next claim, and one that takes its time has a goroutine to itself. A goroutine for
// every claim costs a short job a third of its processor time: its stack is grown once, and scanned with every collection.
type hands struct {
	perform func(*Run)

	mu      sync.Mutex
	queue   []*Run
	head    int             // of queue
	coming  bool            // somebody has been sent for, and has not looked yet
	resting []chan struct{} // who waits for claims, the latest last
	closed  bool
	rests   sync.WaitGroup
}

func newHands(perform func(*Run)) *hands { return &hands{perform: perform} }

// give has claims performed. It never waits.
func (h *hands) give(claims ...*Run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.head > len(h.queue)/2 {
		rest := copy(h.queue, h.queue[h.head:])
		clear(h.queue[rest:])
		h.queue, h.head = h.queue[:rest], 0
	}
	h.queue = append(h.queue, claims...)
	h.send()
}

// waiting reports whether there are claims whose handler has not been called yet.
func (h *hands) waiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.head < len(h.queue)
}

// send has somebody come for what is in the queue, unless somebody comes already. Call it with mu held.
func (h *hands) send() {
	if h.coming || h.head == len(h.queue) {
		return
	}
	h.coming = true
	if n := len(h.resting); n > 0 {
		h.resting[n-1] <- struct{}{}
		h.resting = h.resting[:n-1]
		return
	}
	go h.work()
}

// work performs claims until none has come for a while. A handler that ends its goroutine (runtime.Goexit) ends this one:
// perform settles its claim in deferred calls, and the next claim gets another.
func (h *hands) work() {
	called := make(chan struct{}, 1) // a second call comes only after a look
	timer := time.NewTimer(handsRest)
	defer timer.Stop()
	for sent := true; ; {
		one, rest := h.take(sent, called)
		if sent = false; one != nil {
			h.perform(one)
			continue
		}
		if !rest {
			return
		}
		timer.Reset(handsRest)
		select {
		case <-called:
		case <-timer.C:
			if h.leave(called) {
				return
			}
			<-called
		}
		h.rests.Done()
		sent = true
	}
}

// take returns the next claim, having sent for those behind it; or notes that its caller rests. sent says that the caller
// was sent for. After close nobody rests.
func (h *hands) take(sent bool, called chan struct{}) (one *Run, rest bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sent {
		h.coming = false
	}
	if h.head == len(h.queue) {
		if h.closed {
			return nil, false
		}
		h.resting = append(h.resting, called)
		h.rests.Add(1)
		return nil, true
	}
	one = h.queue[h.head]
	h.queue[h.head] = nil
	h.head++
	h.send()
	return one, false
}

// leave ends a rest, unless its goroutine has just been called.
func (h *hands) leave(called chan struct{}) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.Index(h.resting, called)
	if at < 0 {
		return false
	}
	h.resting = slices.Delete(h.resting, at, at+1)
	h.rests.Done()
	return true
}

// close ends the goroutines that rest and returns when they have; the others end after their claim.
func (h *hands) close() {
	h.mu.Lock()
	h.closed = true
	for _, called := range h.resting {
		called <- struct{}{}
	}
	h.resting = nil
	h.mu.Unlock()
	h.rests.Wait()
}
