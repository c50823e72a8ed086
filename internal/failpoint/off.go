//go:build !failpoints

package failpoint

// Enabled reports whether failpoints are compiled in.
const Enabled = false

// Hit passes a point. Without the build tag failpoints it does nothing.
func Hit(string) error { return nil }
