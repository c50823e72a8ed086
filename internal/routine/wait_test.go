package routine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/routine"
)

func TestSignalCoalescing(t *testing.T) {
	is := is.New(t)
	s := routine.NewSignal()
	is.True(!s.Clear())
	s.Set()
	s.Set()
	is.True(s.Clear())
	is.True(!s.Clear())
	s.Set()
	<-s
	is.True(!s.Clear())
}

func TestBackoffDoublingLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		b := routine.NewBackoff()
		for _, want := range []time.Duration{20, 40, 80, 160, 320, 640, 1000, 1000} {
			want *= time.Millisecond
			began := time.Now()
			is.True(b.Wait(t.Context()))
			took := time.Since(began)
			is.True(want/2 <= took && took <= want*3/2) // with jitter
		}
		is.Equal(b.Tries, 8)
	})
}

func TestWaitsAfterContextEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		is.True(!routine.Sleep(ctx, time.Hour))
		is.Equal(time.Since(began), time.Second)
		is.True(!routine.NewBackoff().Wait(ctx))
	})
}

func TestLingeringContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		longer, stop := routine.Linger(ctx, time.Second)
		defer stop()
		cancel()
		synctest.Wait()
		is.NoErr(longer.Err())
		began := time.Now()
		<-longer.Done()
		is.Equal(time.Since(began), time.Second)
	})
}
