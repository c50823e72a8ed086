//go:build failpoints

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled reports whether failpoints are compiled in.
const Enabled = true

// ErrInjected is returned by a failpoint whose action is error.
var ErrInjected = errors.New("injected by a failpoint")

type action struct {
	do string
	at int
}

var (
	mu     sync.Mutex
	armed  = map[string]action{}
	passed = map[string]int{}
)

func init() {
	if err := Set(os.Getenv("TRAPEZE_FAILPOINTS")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// Set sets the actions of the failpoints in list and clears all others, so an empty list clears them all.
func Set(list string) error {
	mu.Lock()
	defer mu.Unlock()
	clear(armed)
	clear(passed)
	for _, one := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		name, do, ok := strings.Cut(one, "=")
		if !ok {
			return fmt.Errorf("failpoint %q: want name=action[@n]", one)
		}
		do, nth, _ := strings.Cut(do, "@")
		at := 1
		if nth != "" {
			n, err := strconv.Atoi(nth)
			if err != nil {
				return fmt.Errorf("failpoint %q: %w", one, err)
			}
			at = n
		}
		armed[name] = action{do, at}
	}
	return nil
}

// Passed returns how many times a failpoint has been passed since the last call to Set.
func Passed(name string) int {
	mu.Lock()
	defer mu.Unlock()
	return passed[name]
}

// Hit records a pass through a failpoint and performs its action, if any.
func Hit(name string) error {
	mu.Lock()
	passed[name]++
	a, ok := armed[name]
	ok = ok && (a.at == 0 || passed[name] == a.at)
	mu.Unlock()
	if !ok {
		return nil
	}
	fmt.Fprintf(os.Stderr, "failpoint %s: %s\n", name, a.do)
	do, arg, _ := strings.Cut(a.do, ":")
	switch do {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(100 * time.Millisecond) // another thread may handle the signal, and this one must not continue until the process has stopped
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "delay":
		d, err := time.ParseDuration(arg)
		if err != nil {
			return err
		}
		time.Sleep(d)
	case "error":
		return fmt.Errorf("%s: %w", name, ErrInjected)
	}
	return nil
}
