package job

import (
	"fmt"
	"regexp"
)

var (
	validKind = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)
	notInName = regexp.MustCompile(`[^A-Za-z0-9_.:/@+-]+`)
)

// ValidateKind returns [ErrInvalid] for a name that no new kind can have: 1 to 100 letters, digits and _ . : / @ + -, of ASCII, the first a
// letter, a digit or _. Such a name means the same in a shell, an address and a metric. Jobs of other kinds that are there stay.
func ValidateKind(name string) error {
	if len(name) > MaxKindBytes || !validKind.MatchString(name) {
		return fmt.Errorf("%w: kind %.100q: want 1 to %d letters, digits and _ . : / @ + - (ASCII), the first a letter, a digit or _", ErrInvalid, name, MaxKindBytes)
	}
	return nil
}

// DisplayName returns a name of a pod or a remote worker in the alphabet of kinds: whatever else it holds becomes -. It is at most 100 bytes.
func DisplayName(name string) string {
	name = notInName.ReplaceAllString(name, "-")
	if len(name) > 0 && !validKind.MatchString(name[:1]) {
		name = "_" + name
	}
	return name[:min(len(name), 100)]
}
