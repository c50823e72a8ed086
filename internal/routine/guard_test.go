package routine_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/routine"
)

func TestGuardPanic(t *testing.T) {
	here := func(fn func() error) (err error) {
		defer routine.Recover(&err)
		return fn()
	}
	for name, call := range map[string]func(func() error) error{"in this goroutine": here, "in its own": routine.Call} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			err := call(func() error { panic("boom") })
			p, ok := errors.AsType[*routine.Panic](err)
			is.True(ok)
			is.Equal(p.Value, "boom")
			is.True(strings.Contains(p.Stack, "guard_test.go")) // the stack shows where it panicked
			own := errors.New("own")
			is.Equal(call(func() error { return own }), own)
			is.NoErr(call(func() error { return nil }))
		})
	}
}

func TestGuardGoexit(t *testing.T) {
	is := is.New(t)
	is.Equal(routine.Call(func() error { runtime.Goexit(); return nil }), routine.ErrExited)
}

func TestOtherGoroutineStack(t *testing.T) {
	is := is.New(t)
	number, end, ended := make(chan uint64), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		number <- routine.Goroutine()
		<-end
	}()
	n := <-number
	stack := routine.StackOf(n, 1<<16)
	is.True(strings.HasPrefix(stack, "goroutine ") && strings.Contains(stack, "TestOtherGoroutineStack"))
	is.Equal(strings.Count(stack, "\n\n"), 0) // only one goroutine
	short := routine.StackOf(n, 60)
	is.True(len(short) <= 60+len("...") && strings.HasSuffix(short, "\n...") && strings.HasPrefix(stack, strings.TrimSuffix(short, "...")))
	close(end)
	<-ended
	is.Equal(routine.StackOf(1<<60, 1<<16), "") // there is no such goroutine
}
