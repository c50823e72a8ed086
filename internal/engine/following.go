package engine

import (
	"context"
	"sync"
	"time"
)

// following is how far this pod's heartbeats have told it how lanes, pods and the gate are set.
type following struct {
	mu   sync.Mutex
	sent time.Time     // of the latest heartbeat whose answer was taken in
	news chan struct{} // closed with the next one; nil: nobody waits
}

// told notes that the answer to a heartbeat was taken in.
func (f *following) told(sent time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = sent
	if f.news != nil {
		close(f.news)
		f.news = nil
	}
}

// after asks for heartbeats until the answer to one was taken in that was sent after a moment, or until ctx ends.
func (f *following) After(ctx context.Context, moment time.Time, ask func()) {
	for {
		f.mu.Lock()
		if f.sent.After(moment) {
			f.mu.Unlock()
			return
		}
		if f.news == nil {
			f.news = make(chan struct{})
		}
		news := f.news
		f.mu.Unlock()
		ask()
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}
