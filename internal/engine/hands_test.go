package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"
)

// Claims are performed although those before them never return, and each once.
func TestNoClaimWaitsForAnotherOnesHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const claims = 200
	var began sync.WaitGroup
	began.Add(claims)
	open := make(chan struct{})
	var times [claims]atomic.Int32
	h := newHands(func(one *Run) {
		times[one.Lease.JobID].Add(1)
		began.Done()
		<-open
	})
	for i := range claims {
		h.give(numbered(i))
	}
	began.Wait()
	close(open)
	h.close()
	for i := range times {
		is.Equal(times[i].Load(), int32(1))
	}
}

// Short handlers leave their goroutine to the next claim, one that exits its own costs nobody else anything, and close
// waits for those that rest.
func TestHandsAreUsedAgainAndNoneIsLeft(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const claims = 10000
	var done sync.WaitGroup
	done.Add(claims)
	var mu sync.Mutex
	now, most := 0, 0
	h := newHands(func(one *Run) {
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
		if one.Lease.JobID%1000 == 7 {
			runtime.Goexit()
		}
	})
	var givers sync.WaitGroup
	for g := range 4 {
		givers.Go(func() {
			for i := range claims / 4 {
				h.give(numbered(g*claims/4 + i))
			}
		})
	}
	givers.Wait()
	done.Wait()
	h.close()
	is.Equal(len(h.resting), 0)
	is.Equal(h.head, len(h.queue)) // nothing is left behind
	is.True(most < claims/10)

	// After close nobody rests: what still comes is performed, and its goroutine ends.
	done.Add(1)
	h.give(numbered(1))
	done.Wait()
}

func numbered(i int) *Run {
	one := &Run{}
	one.Lease.JobID = int64(i)
	return one
}
