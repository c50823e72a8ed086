package routine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/matryer/is"
)

// flushes records batches, each of which ends when the test allows it.
type flushes struct {
	mu   sync.Mutex
	list [][]int
	end  chan error // each value sent ends one flush
}

func (f *flushes) flush(items []int) ([]int, error) {
	f.mu.Lock()
	f.list = append(f.list, items)
	f.mu.Unlock()
	return items, <-f.end
}

// inBubble calls do with the recorder of a batcher's flushes, a function that adds items, and a function that returns the sizes of the
// batches so far. It checks that each caller gets back the item it added, or the expected error.
func inBubble(t *testing.T, parallel, limit int, do func(is *is.I, f *flushes, add func(from, to int, want error), sizes func() []int)) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		f := &flushes{end: make(chan error)}
		b := NewBatcher(parallel, limit, f.flush)
		do(is, f, func(from, to int, want error) {
			for i := from; i < to; i++ {
				go func() {
					if got, err := b.Do(context.Background(), i); err != want || err == nil && got != i {
						t.Errorf("item %d: %d, %v", i, got, err)
					}
				}()
			}
			synctest.Wait()
		}, func() (sizes []int) {
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, items := range f.list {
				sizes = append(sizes, len(items))
			}
			return sizes
		})
		synctest.Wait()
		is.Equal(b.flushing, 0)
		is.Equal(len(b.queue), 0)
	})
}

func TestBatchItemsDuringFlush(t *testing.T) {
	inBubble(t, 1, 1000, func(is *is.I, f *flushes, add func(int, int, error), sizes func() []int) {
		add(0, 1, nil)
		is.Equal(sizes(), []int{1}) // the first item is flushed immediately
		add(1, 51, nil)
		is.Equal(sizes(), []int{1}) // later items do not join a flush that has already started
		f.end <- nil
		is.Equal(sizes(), []int{1, 50})
		f.end <- nil
		add(51, 52, nil)
		is.Equal(sizes(), []int{1, 50, 1})
		f.end <- nil
	})
}

func TestBatchFlushLimits(t *testing.T) {
	inBubble(t, 2, 10, func(is *is.I, f *flushes, add func(int, int, error), sizes func() []int) {
		add(0, 1, nil)
		add(1, 2, nil)
		is.Equal(sizes(), []int{1, 1}) // two flushes run in parallel
		add(2, 27, nil)
		is.Equal(sizes(), []int{1, 1})
		f.end <- nil
		is.Equal(sizes(), []int{1, 1, 10})
		f.end <- nil // both single-item flushes have ended, in either order
		synctest.Wait()
		for range 3 {
			f.end <- nil
		}
		all := sizes()
		slices.Sort(all) // two flushes that start together are recorded in either order
		is.Equal(all, []int{1, 1, 5, 10, 10})
	})
}

func TestBatchFlushError(t *testing.T) {
	torn := errors.New("torn")
	inBubble(t, 1, 1000, func(is *is.I, f *flushes, add func(int, int, error), sizes func() []int) {
		add(0, 1, nil)
		add(1, 4, torn)
		f.end <- nil
		synctest.Wait()
		add(4, 5, nil)
		f.end <- torn
		f.end <- nil
		is.Equal(sizes(), []int{1, 3, 1})
	})
}

func TestBatchCallerContextEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		f := &flushes{end: make(chan error)}
		b := NewBatcher(1, 10, f.flush)
		go func() { _, _ = b.Do(context.Background(), 0) }()
		synctest.Wait()
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(gone)
		_, err := b.Do(ctx, 1)
		is.Equal(err, gone)
		f.end <- nil
		f.end <- nil // the item is still flushed
		synctest.Wait()
		is.Equal(f.list, [][]int{{0}, {1}})
	})
}
