//go:build mutants

package mutant

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// Enabled reports whether mutants are compiled in.
const Enabled = true

var chosen atomic.Pointer[string]

func init() {
	if err := Set(os.Getenv("TRAPEZE_MUTANT")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// Set chooses the mistake that the process makes from now on; an empty name chooses none. It is for processes at rest:
// what has begun may be half one and half the other.
func Set(name string) error {
	if name != "" && !slices.Contains(Names(), name) {
		return fmt.Errorf("mutant %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	chosen.Store(&name)
	return nil
}

// Is reports whether the process makes a mistake. Safe for concurrent use.
func Is(name string) bool { return *chosen.Load() == name }
