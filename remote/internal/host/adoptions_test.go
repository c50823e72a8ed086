package host

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

func TestConcurrentWorkerAdoptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		finish := make(chan struct{})
		var passes [][]string // only one read runs at a time, so no lock is needed
		a := newAdoptions(func(_ context.Context, podIDs ...string) (list []store.Held, err error) {
			passes = append(passes, podIDs)
			<-finish
			for i, podID := range podIDs {
				list = append(list, store.Held{Pod: podID, ID: int64(i)})
			}
			return list, nil
		})
		var asking sync.WaitGroup
		var wrong atomic.Int64
		one := func(podID string) {
			asking.Go(func() {
				held, err := a.Do(context.Background(), podID)
				if err != nil || len(held) != 1 || held[0].Pod != podID {
					wrong.Add(1)
				}
			})
		}
		one("first")
		synctest.Wait()
		for i := range 50 {
			one(fmt.Sprint(i))
		}
		synctest.Wait()
		close(finish)
		asking.Wait()
		is.Equal(wrong.Load(), int64(0)) // every worker gets its own claims
		is.Equal(len(passes), 2)         // the first read, and one for all requests that arrived while it was running
		is.Equal(len(passes[1]), 50)     // no request gets the result of a read that started earlier
	})
}
