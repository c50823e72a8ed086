//go:build !mutants

package mutant

// Enabled reports whether mutants are compiled in.
const Enabled = false

// Is reports whether the process makes a mistake. Without the build tag mutants it makes none.
func Is(string) bool { return false }
