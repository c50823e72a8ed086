// Package guard turns a panic, or a goroutine that exits without returning, into an error. It is used for calling handlers and for encoding
// the values that they return. It also identifies goroutines and reads their stacks.
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

// Panic is the error returned for a function that panicked.
type Panic struct{ Value, Stack string }

func (p *Panic) Error() string { return fmt.Sprintf("panic: %s\n%s", p.Value, p.Stack) }

// SplitStack splits the text of an error that contains a [Panic] into the message and the stack. If there is no stack, the returned stack
// is empty.
func SplitStack(text string) (message, stack string) {
	if at := strings.Index(text, "\ngoroutine "); at >= 0 {
		return text[:at], text[at+1:]
	}
	return text, ""
}

// ErrExited is the error returned for a function that exited its goroutine without returning.
var ErrExited = errors.New("handler exited its goroutine without returning (runtime.Goexit)")

// Recover sets *err to a [Panic] if the function that defers it panics.
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = &Panic{fmt.Sprint(p), string(debug.Stack())}
	}
}

// Call calls fn on a separate goroutine, because fn may call runtime.Goexit, and waits for it. It returns fn's error, a [Panic] or
// [ErrExited].
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

// Goroutine returns the number of the calling goroutine. Numbers start at 1. The call takes about a microsecond. The number distinguishes a
// nested call, which would wait for itself, from a concurrent one, and identifies a goroutine for [StackOf].
func Goroutine() uint64 {
	var buf [40]byte
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(text, []byte(" "))
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}

// These limit the memory used to read the stacks of all goroutines.
const (
	firstStacks = 1 << 20
	mostStacks  = 64 << 20
)

// StackOf returns a goroutine's stack in the format of [debug.Stack], cut to the given maximum size. It returns an empty string if the
// goroutine has ended. All goroutines stop while their stacks are read, which takes milliseconds if there are thousands of them.
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

// cut shortens a stack to the complete lines that fit within the given maximum size.
func cut(stack string, most int) string {
	if len(stack) <= most {
		return stack
	}
	return stack[:strings.LastIndexByte(stack[:most], '\n')+1] + "…"
}
