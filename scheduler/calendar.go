package scheduler

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// MaxExpressionBytes is the maximum length of an expression.
const MaxExpressionBytes = 200

// Limits on the search for occurrences.
const (
	searchYears    = 10   // more than the eight years between the leap days around 2100
	maxOccurrences = 1000 // number of occurrences that MinInterval examines
	lastYear       = 9999 // the last year that RFC 3339 can represent
)

// ErrOver means that an expression's only occurrence is in the past.
var ErrOver = errors.New("that time has passed")

// Calendar computes when a schedule fires. Create one with [Parse]. It is immutable and safe for concurrent use.
type Calendar struct {
	rule   rule
	zone   *time.Location
	anchor time.Time
}

// rule is implemented by the three types of schedules: cron fields, a fixed interval, and a single occurrence.
type rule interface {
	next(after time.Time) time.Time // returns the first occurrence after a time, or the zero time if there is none
	words(zone *time.Location) string
}

// Parse parses an expression in a time zone, given by its IANA name; an empty zone means UTC. All occurrences are after anchor. An
// expression has one of these forms:
//
//	30 2 * * *                minute, hour, day of the month, month, day of the week; * ? , - / and names as in cron
//	15 30 2 * * *             seconds first
//	@daily                    also @hourly @weekly @monthly @yearly @midnight @annually
//	@every 15m                anchor + 15 minutes, + 30 minutes and so on; at least 1s, in units h m s ms us
//	@at 2027-01-31T03:00      once; also with seconds, and with Z or an offset such as +01:00
//
// If both the day of the month and the day of the week are set and neither is *, the schedule fires when either matches. Parse returns
// [job.ErrInvalidSchedule] if the expression is invalid or does not fire within ten years. If the time of an @at is not after the anchor,
// the error also wraps [ErrOver]. Parse then still returns a Calendar, which has no occurrences, so that its Words can be shown.
func Parse(expression, zone string, anchor time.Time) (*Calendar, error) {
	loc, zoneErr := loadZone(zone)
	if zoneErr != nil {
		loc = time.UTC // continue in order to report all mistakes
	}
	r, err := parseRule(expression, loc, anchor)
	if err = errors.Join(zoneErr, err); err != nil {
		return nil, err
	}
	c := &Calendar{rule: r, zone: loc, anchor: anchor}
	if one, ok := r.(once); ok && !one.at.After(anchor) {
		return c, fmt.Errorf("%w: expression %q, after %s: %w", job.ErrInvalidSchedule, expression, anchor.UTC().Format(time.RFC3339), ErrOver)
	}
	if next := c.Next(anchor); next.IsZero() || next.After(anchor.AddDate(searchYears, 0, 0)) {
		return nil, invalid("expression %q never fires within %d years after %s", expression, searchYears,
			anchor.UTC().Format(time.RFC3339))
	}
	return c, nil
}

func parseRule(expression string, zone *time.Location, anchor time.Time) (rule, error) {
	text := strings.TrimSpace(expression)
	switch verb, rest, _ := strings.Cut(text, " "); {
	case len(expression) > MaxExpressionBytes:
		return nil, invalid("expression of %d bytes, at most %d", len(expression), MaxExpressionBytes)
	case text == "":
		return nil, invalid(`expression is missing: want one such as "30 2 * * *", "@daily", "@every 15m" or "@at 2027-01-31T03:00"`)
	case strings.Contains(text, "="):
		return nil, invalid(`expression %q: set the time zone separately, such as "Europe/Zurich", not part of the expression`, expression)
	case verb == "@every":
		return parseEvery(strings.TrimSpace(rest), anchor)
	case verb == "@at":
		return parseOnce(strings.TrimSpace(rest), zone)
	default:
		return parseFields(text, zone)
	}
}

// Next returns the first occurrence after a given time, in UTC, or the zero time if there is none within ten years.
func (c *Calendar) Next(after time.Time) time.Time {
	if after.Before(c.anchor) {
		after = c.anchor
	}
	next := c.rule.next(after)
	if next.IsZero() || next.UTC().Year() > lastYear {
		return time.Time{}
	}
	return next.UTC()
}

// Latest returns the latest occurrence after from and not after until, in UTC, or the zero time if there is none. It takes at most about
// sixty steps, regardless of the number of occurrences.
func (c *Calendar) Latest(from, until time.Time) time.Time {
	due := func(t time.Time) bool { return !t.IsZero() && !t.After(until) }
	best := c.Next(from)
	if !due(best) {
		return time.Time{}
	}
	for end := until; ; { // no occurrence is later than end
		following := c.Next(best)
		if !due(following) {
			return best
		}
		best = following
		middle := between(best, end)
		if next := c.Next(middle); due(next) {
			best = next
		} else {
			end = middle
		}
	}
}

// between returns the time halfway between a and b. Their difference may exceed the longest [time.Duration].
func between(a, b time.Time) time.Time {
	from, until := a.UnixMicro(), b.UnixMicro()
	return time.UnixMicro(from + (until-from)/2)
}

// MinInterval returns the shortest interval between two consecutive occurrences. It examines the first thousand occurrences after the
// anchor, or fewer if they span more than ten years. For a schedule that fires once, it returns the longest [time.Duration].
func (c *Calendar) MinInterval() time.Duration {
	least := time.Duration(math.MaxInt64)
	last, end := c.Next(c.anchor), c.anchor.AddDate(searchYears, 0, 0)
	for range maxOccurrences {
		next := c.Next(last)
		if next.IsZero() || last.After(end) {
			break
		}
		least, last = min(least, next.Sub(last)), next
	}
	return least
}

// Words describes in plain language when the schedule fires, including the time zone.
func (c *Calendar) Words() string { return c.rule.words(c.zone) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{job.ErrInvalidSchedule}, args...)...)
}

// loadZone loads a time zone by name. It rejects the machine's local zone so that a schedule has the same zone on every pod.
func loadZone(name string) (*time.Location, error) {
	const want = `want an IANA time zone such as "Europe/Zurich", "America/New_York" or "UTC"`
	switch lower := strings.ToLower(name); {
	case lower == "local" || lower == "localtime":
		return nil, invalid("zone %q depends on the machine: %s", name, want)
	case len(name) > 100:
		return nil, invalid("zone of %d bytes: %s", len(name), want)
	case strings.HasPrefix(lower, "posix") || strings.HasPrefix(lower, "right"): // these exist only on some systems
		return nil, invalid("zone %q is not known on every machine: %s", name, want)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, invalid("unknown zone %q: %s", name, want)
	}
	return loc, nil
}

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

// every fires at anchor + n · interval for n ≥ 1, independent of wall clocks.
type every struct {
	anchor   time.Time
	interval time.Duration
}

func parseEvery(text string, anchor time.Time) (rule, error) {
	interval, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return nil, invalid(`"@every %s" has no duration: want one such as "@every 15m", "@every 1h30m" or "@every 24h"`, text)
	case interval < time.Second:
		return nil, invalid(`"@every %s" is shorter than a second: want "@every 1s" or longer`, text)
	case interval%time.Microsecond != 0:
		return nil, invalid(`"@every %s" is finer than microseconds, the resolution of the database: want one such as "@every 1.5s"`, text)
	}
	return every{anchor.Truncate(time.Microsecond), interval}, nil
}

// next calculates in microseconds, like the database, because a [time.Duration] cannot represent more than 292 years.
func (e every) next(after time.Time) time.Time {
	anchor, interval := e.anchor.UnixMicro(), e.interval.Microseconds()
	n := max((after.UnixMicro()-anchor)/interval, 0) + 1
	return time.UnixMicro(anchor + n*interval)
}

// once fires at a single time.
type once struct {
	at time.Time
}

func parseOnce(text string, zone *time.Location) (rule, error) {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if w, err := time.Parse(layout, text); err == nil && len(text) == len(layout) {
			return once{moment(w, zone)}, nil
		}
		if t, err := time.Parse(layout+"Z07:00", text); err == nil && !strings.ContainsAny(text, ".,") {
			return once{t}, nil
		}
	}
	return nil, invalid(`"@at %s" has no time: want one such as "@at 2027-01-31T03:00", "@at 2027-01-31T03:00:05" or, with an offset, `+
		`"@at 2027-01-31T03:00+01:00"`, text)
}

func (o once) next(after time.Time) time.Time {
	if o.at.After(after) {
		return o.at
	}
	return time.Time{}
}
