package access

import (
	"cmp"
	"slices"
	"time"
)

// Caps holds the highest values that a principal may set when it submits a job. A nil field means that there is no cap.
type Caps struct {
	Priority *int
	Delay    *time.Duration
	Attempts *int
}

// CapsOf returns the combined caps of the roles that grant [JobsSubmit]. The highest value of each cap applies.
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

// higher returns the higher of two caps. It returns nil if one of them is nil.
func higher[T cmp.Ordered](a, b *T) *T {
	if a == nil || b == nil {
		return nil
	}
	return new(max(*a, *b))
}
