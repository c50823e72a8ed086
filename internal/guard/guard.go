// Package guard turns a panic, or a goroutine that ends without returning, into an error. Code that calls handlers, or encodes the values
// that they return, uses it. It knows nothing about jobs.
package guard

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Panic is the error of a function that panicked.
type Panic struct{ Value, Stack string }

func (p *Panic) Error() string { return fmt.Sprintf("panic: %s\n%s", p.Value, p.Stack) }

// SplitStack splits the text of an error that contains that of a [Panic] into the error and the stack; empty: there is no stack.
func SplitStack(text string) (message, stack string) {
	if at := strings.Index(text, "\ngoroutine "); at >= 0 {
		return text[:at], text[at+1:]
	}
	return text, ""
}

// ErrExited is the error of a function that ended its goroutine without returning.
var ErrExited = errors.New("handler exited its goroutine without returning (runtime.Goexit)")

// Recover sets *err to the panic of the function that defers it, if it panics.
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = &Panic{fmt.Sprint(p), string(debug.Stack())}
	}
}

// Call calls fn on a separate goroutine, which fn may end, and waits for it. It returns fn's error, its [Panic] or [ErrExited].
func Call(fn func() error) error {
	err := ErrExited
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer Recover(&err)
		err = fn()
	}()
	<-done
	return err
}

// Goroutine returns the number of the calling goroutine, counted from 1. It takes about a microsecond. Its only purpose is to tell a nested
// call, which would wait for itself, from a concurrent one.
func Goroutine() uint64 {
	var buf [40]byte
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(text, []byte(" "))
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}
