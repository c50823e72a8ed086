// Package routine has what goroutines need: ways to wait ([Signal], [Sleep], [Backoff], [Linger]), group commit ([Batcher]), the end of
// handlers without activity ([Watchdog]), and calls that turn a panic, or the exit of the goroutine, into an error ([Call]).
package routine

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Panic is the error returned for a function that panicked.
type Panic struct{ Value, Stack string }

func (p *Panic) Error() string { return fmt.Sprintf("panic: %s\n%s", p.Value, p.Stack) }

// SplitStack splits the text of an error that contains a [Panic] into the message and the stack. For other errors, the stack is empty.
func SplitStack(text string) (message, stack string) {
	if at := strings.Index(text, "\ngoroutine "); at >= 0 {
		return text[:at], text[at+1:]
	}
	return text, ""
}

// ErrExited is the error returned for a function that exited its goroutine without returning.
var ErrExited = errors.New("handler exited its goroutine without returning (runtime.Goexit)")

// Recover, when deferred, sets *err to a [Panic] if the surrounding function panics.
func Recover(err *error) {
	if p := recover(); p != nil {
		stack := string(debug.Stack())
		*err = &Panic{describe(p), stack}
	}
}

// Call calls fn on a separate goroutine, because fn may call runtime.Goexit, and waits for it. It returns fn's error, a [Panic] if fn
// panics, or [ErrExited] if fn exits its goroutine.
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

// Goroutine returns the calling goroutine's number, which is at least 1. It takes about a microsecond. The number identifies a goroutine
// for [StackOf], and distinguishes a nested call, which would wait for itself, from a concurrent one.
func Goroutine() uint64 {
	var buf [40]byte
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(text, []byte(" "))
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}

// The minimum and maximum sizes of the buffer into which all goroutines' stacks are read.
const (
	firstStacks = 1 << 20
	mostStacks  = 64 << 20
)

// StackOf returns a goroutine's stack in the format of [debug.Stack], cut to at most the given size, or an empty string if the goroutine
// has ended. All goroutines are stopped while their stacks are read, which takes milliseconds if there are thousands of them.
func StackOf(goroutine uint64, most int) string {
	head := fmt.Sprintf("goroutine %d ", goroutine)
	for size := firstStacks; ; size *= 4 {
		buf := make([]byte, size)
		n := runtime.Stack(buf, true)
		for stack := range bytes.SplitSeq(buf[:n], []byte("\n\n")) {
			if bytes.HasPrefix(stack, []byte(head)) {
				return cut(string(stack), most)
			}
		}
		if n < size || size >= mostStacks {
			return ""
		}
	}
}

// cut shortens a stack to the complete lines that fit into the given size.
func cut(stack string, most int) string {
	if len(stack) <= most {
		return stack
	}
	return stack[:strings.LastIndexByte(stack[:most], '\n')+1] + "..." // ASCII, which every database can store
}
