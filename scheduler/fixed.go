package scheduler

import (
	"strings"
	"time"
)

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
