package scheduler

import "time"

// A wall time is kept as a time in UTC that reads the same. What a zone's wall clock shows rises evenly but for its changes, at which
// it leaps ahead (the wall times between do not exist: a gap) or back (those between come twice). Two functions lead from one to
// the other, each the other's inverse, so that a wall time is met once, whatever the clock does:
//
//	moment(w)  the first moment at which the clock shows w or more: in a gap the moment of the change, of doubled times the first
//	shown(t)   the most that the clock has shown until t: while it shows times again, the last before it was put back
//
// A schedule's next fire after t is thus the moment of its first wall time after shown(t).

// reach is longer than any wall clock is off UTC, and than any change of one.
const reach = 48 * time.Hour

// moment returns the first moment at which the zone's clock shows w or more.
func moment(w time.Time, zone *time.Location) time.Time {
	t := w.Add(-reach).In(zone)
	for {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // so Go says on the last day of leap years that are beyond a zone's table
			end = t.Add(24 * time.Hour)
		}
		if at := w.Add(-seconds(offset)); end.IsZero() || at.Before(end) {
			return later(t, at)
		}
		t = end
	}
}

// shown returns the latest wall time that the zone's clock has shown until t.
func shown(t time.Time, zone *time.Location) time.Time {
	most := wall(t, zone)
	for start, _ := t.In(zone).ZoneBounds(); !start.IsZero() && t.Sub(start) < reach; start, _ = start.ZoneBounds() {
		start = start.Add(-1) // the last nanosecond before the change
		most = later(most, wall(start, zone))
	}
	return most
}

// wall returns what the zone's clock shows at t.
func wall(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.Add(seconds(offset)).UTC()
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
