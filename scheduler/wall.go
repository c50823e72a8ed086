package scheduler

import "time"

// A wall time is stored as a UTC time with the same clock reading. A zone's wall clock advances evenly except when its offset changes. It
// then jumps forward, so that the wall times in between do not exist, or back, so that they occur twice. Two functions convert between real
// and wall time. They are inverses of each other, so every wall time is visited once:
//
//	moment(w)  the first time at which the clock shows w or later: in a gap, the time of the change; of two equal readings, the first
//	shown(t)   the latest wall time that the clock has shown up to t: while times repeat, the last one before the clock went back
//
// To find the next occurrence after t, take the schedule's first wall time after shown(t); the occurrence is its moment.

// reach exceeds the UTC offset of every zone, and the size of every offset change.
const reach = 48 * time.Hour

// moment returns the first time at which the zone's clock shows w or later.
func moment(w time.Time, zone *time.Location) time.Time {
	t := w.Add(-reach).In(zone)
	for {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // Go returns an end that is not after t on the last day of leap years beyond the zone's table
			end = t.Add(24 * time.Hour)
		}
		if at := w.Add(-seconds(offset)); end.IsZero() || at.Before(end) {
			return later(t, at)
		}
		t = end
	}
}

// shown returns the latest wall time that the zone's clock has shown up to t.
func shown(t time.Time, zone *time.Location) time.Time {
	most := wall(t, zone)
	for start, _ := t.In(zone).ZoneBounds(); !start.IsZero() && t.Sub(start) < reach; start, _ = start.ZoneBounds() {
		start = start.Add(-1) // the last nanosecond before the change
		most = later(most, wall(start, zone))
	}
	return most
}

// wall returns the zone's wall time at t.
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
