package scheduler

import "time"

// A wall time is stored as a time in UTC with the same clock reading. A zone's wall clock advances evenly except at its changes.
// There it leaps forward, so that the wall times in between do not exist, or back, so that those in between occur twice. Two
// functions convert between both kinds of time. Each is the other's inverse, so that every wall time is visited once:
//
//	moment(w)  the first moment at which the clock shows w or more: in a gap the moment of the change, of repeated times the first
//	shown(t)   the latest wall time that the clock has shown until t: while times repeat, the last one before the clock went back
//
// A schedule's next occurrence after t is thus the moment of its first wall time after shown(t).

// reach is longer than the offset of any wall clock from UTC, and longer than any change of one.
const reach = 48 * time.Hour

// moment returns the first moment at which the zone's clock shows w or more.
func moment(w time.Time, zone *time.Location) time.Time {
	t := w.Add(-reach).In(zone)
	for {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // Go returns such an end on the last day of leap years after the end of a zone's table
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

// wall returns the wall time of the zone at t.
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
