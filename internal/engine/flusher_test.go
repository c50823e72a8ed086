package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// A batch that waits for a lock must not hold up the completions that come after it.
func TestCompletionDuringSlowBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, stop := context.WithCancel(t.Context())
		f := newFlusher(nil, NewWorkerPool[*Run](nil), func([]*flush) {})
		locked, written := make(chan struct{}), make(chan *flush, 2)
		first, second := &flush{}, &flush{}
		f.write = func(_ context.Context, batch []*flush) {
			if batch[0] == first {
				<-locked
			}
			written <- batch[0]
		}
		ended := make(chan struct{})
		go func() { f.run(ctx); close(ended) }()
		f.put(first)
		synctest.Wait()
		f.put(second) // before the first batch counts as slow
		time.Sleep(flushSlow)
		synctest.Wait()
		is.Equal(len(written), 1)
		is.Equal(<-written, second)
		close(locked)
		is.Equal(<-written, first)
		stop()
		<-ended
	})
}

// When the pod stops, completions that wait for another attempt are answered like the queued ones. Otherwise their runs would never end.
func TestStoppedFlusherHeldCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		answered := make(chan *flush, 2)
		f := newFlusher(nil, nil, func(list []*flush) { answered <- list[0] })
		f.queue = []*flush{{}}
		f.putBack([]*flush{{tries: 10}})
		f.close()
		for range 2 {
			is.Equal((<-answered).err, errStopped)
		}
	})
}
