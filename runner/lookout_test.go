package runner

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

func TestWorkersThatComeTogetherShareAPassOverTheTable(t *testing.T) {
	is := is.New(t)
	var l lookout
	begun, finish := make(chan struct{}, 100), make(chan struct{})
	var passes [][]string // one pass at a time writes it
	ask := func(_ context.Context, boots ...string) (list []store.Held, err error) {
		passes = append(passes, boots)
		begun <- struct{}{}
		<-finish
		for i, boot := range boots {
			list = append(list, store.Held{Pod: boot, ID: int64(i)})
		}
		return list, nil
	}
	var asking sync.WaitGroup
	var mu sync.Mutex
	wrong := 0
	one := func(boot string) {
		asking.Go(func() {
			held, err := l.held(context.Background(), ask, boot)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || len(held) != 1 || held[0].Pod != boot {
				wrong++
			}
		})
	}
	one("first")
	<-begun
	for i := range 50 {
		one(fmt.Sprint(i))
	}
	for gathered := 0; gathered < 50; {
		l.mu.Lock()
		if l.next != nil {
			gathered = len(l.next.boots)
		}
		l.mu.Unlock()
	}
	close(finish)
	asking.Wait()
	is.Equal(wrong, 0)           // each is told of its own
	is.Equal(len(passes), 2)     // one that was under way, and one for all who came meanwhile
	is.Equal(len(passes[1]), 50) // of which none is told what was read before it asked
}
