package job

import (
	"fmt"
	"regexp"
)

var (
	validKind = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)
	notInName = regexp.MustCompile(`[^A-Za-z0-9_.:/@+-]+`)
)

// ValidateKind returns [ErrInvalid] unless name is a valid name for a new kind: 1 to 100 ASCII letters, digits and _ . : / @ + -, starting
// with a letter, a digit or _. A valid name needs no quoting in a shell, a URL or a metric. Existing jobs are unaffected, even if their
// kinds have invalid names.
func ValidateKind(name string) error {
	if len(name) > MaxKindBytes || !validKind.MatchString(name) {
		return fmt.Errorf("%w: kind %.100q: want 1 to %d letters, digits and _ . : / @ + - (ASCII), the first a letter, a digit or _", ErrInvalid, name, MaxKindBytes)
	}
	return nil
}

// DisplayName returns name as a display name for a pod or remote worker. It replaces characters that are not allowed in kinds with hyphens,
// and truncates the name to 100 bytes.
func DisplayName(name string) string {
	name = notInName.ReplaceAllString(name, "-")
	if len(name) > 0 && !validKind.MatchString(name[:1]) {
		name = "_" + name
	}
	return name[:min(len(name), 100)]
}
