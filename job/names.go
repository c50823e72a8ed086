package job

import (
	"fmt"
	"regexp"
)

var (
	validKind = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)
	notInName = regexp.MustCompile(`[^A-Za-z0-9_.:/@+-]+`)
)

// ValidateKind returns [ErrInvalid] if name is not valid for a new kind. A valid name has 1 to 100 ASCII letters, digits and _ . : / @ + -
// and begins with a letter, a digit or _. It needs no quoting in a shell, a URL or a metric. Existing jobs of other kinds are not affected.
func ValidateKind(name string) error {
	if len(name) > MaxKindBytes || !validKind.MatchString(name) {
		return fmt.Errorf("%w: kind %.100q: want 1 to %d letters, digits and _ . : / @ + - (ASCII), the first a letter, a digit or _", ErrInvalid, name, MaxKindBytes)
	}
	return nil
}

// DisplayName returns the name of a pod or a remote worker in the alphabet of kinds, at most 100 bytes long. It replaces every other
// character by a hyphen.
func DisplayName(name string) string {
	name = notInName.ReplaceAllString(name, "-")
	if len(name) > 0 && !validKind.MatchString(name[:1]) {
		name = "_" + name
	}
	return name[:min(len(name), 100)]
}
