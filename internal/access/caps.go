package access

import (
	"cmp"
	"slices"
	"time"
)

// Caps holds the highest values that a principal may set when submitting a job. A nil field means no cap.
type Caps struct {
	Priority *int
	Delay    *time.Duration
	Attempts *int
}

// CapsOf combines the caps of the roles that grant [JobsSubmit]. If roles differ, the highest cap applies.
func CapsOf(roles ...Role) (caps Caps) {
	first := true
	for _, role := range roles {
		switch {
		case !slices.Contains(role.Permissions, JobsSubmit):
			continue
		case first:
			caps, first = role.Caps, false
		default:
			caps = Caps{higher(caps.Priority, role.Caps.Priority), higher(caps.Delay, role.Caps.Delay), higher(caps.Attempts, role.Caps.Attempts)}
		}
	}
	return caps
}

// higher returns the higher of two caps, or nil if either of them is nil.
func higher[T cmp.Ordered](a, b *T) *T {
	if a == nil || b == nil {
		return nil
	}
	return new(max(*a, *b))
}
