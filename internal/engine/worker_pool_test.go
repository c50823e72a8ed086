package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"
)

// Each item runs once, even if earlier items never return.
func TestNoItemWaitsForAnother(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const items = 200
	var began sync.WaitGroup
	began.Add(items)
	open := make(chan struct{})
	var times [items]atomic.Int32
	h := NewWorkerPool(func(one int, _ uint64) {
		times[one].Add(1)
		began.Done()
		<-open
	})
	for i := range items {
		h.Give(i)
	}
	began.Wait()
	close(open)
	h.Close()
	for i := range times {
		is.Equal(times[i].Load(), int32(1))
	}
}

// Short items reuse goroutines, an item that makes its goroutine exit does not affect others, and Close waits for idle goroutines.
func TestWorkerPoolGoroutineReuse(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const items = 10000
	var done sync.WaitGroup
	done.Add(items)
	var mu sync.Mutex
	now, most := 0, 0
	h := NewWorkerPool(func(one int, _ uint64) {
		defer done.Done()
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() {
			mu.Lock()
			now--
			mu.Unlock()
		}()
		if one%1000 == 7 {
			runtime.Goexit()
		}
	})
	var givers sync.WaitGroup
	for g := range 4 {
		givers.Go(func() {
			for i := range items / 4 {
				h.Give(g*items/4 + i)
			}
		})
	}
	givers.Wait()
	done.Wait()
	h.Close()
	is.Equal(len(h.idle), 0)
	is.Equal(h.head, len(h.queue)) // no items are left
	is.True(most < items/10)

	// After Close, no goroutine becomes idle. A later item still runs, and its goroutine then exits.
	done.Add(1)
	h.Give(1)
	done.Wait()
}
