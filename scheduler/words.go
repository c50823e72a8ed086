package scheduler

import (
	"fmt"
	"strings"
	"time"
)

// The words depend on what an expression means, not on how it is written. Two cron expressions in the same zone have the same words if and
// only if they fire at the same times (TestWordsTellSchedulesApart). If there is no shorter form, each field is described.

func (e every) words(*time.Location) string {
	for _, u := range []struct {
		name string
		long time.Duration
	}{{"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}} {
		if e.interval%u.long == 0 {
			return each(int(e.interval/u.long), u.name)
		}
	}
	return "every " + e.interval.String()
}

func (o once) words(zone *time.Location) string {
	shows := o.at.In(zone)
	text := shows.Format("2006-01-02 at 15:04:05")
	if !moment(wall(o.at, zone), zone).Equal(o.at) { // the clock shows this time twice, and this is the second time
		text += shows.Format(" (-07:00)")
	}
	return "once, on " + text + zoned(zone)
}

func (f fields) words(zone *time.Location) string {
	clock, days := f.clockWords(), f.dayWords()
	switch {
	case f.allDay() && days == "every day":
		return clock + zoned(zone)
	case strings.HasPrefix(days, "on the") || strings.HasPrefix(days, "on every"):
		return join(days, clock) + zoned(zone)
	}
	return join(clock, days) + zoned(zone)
}

// join joins two phrases, with a comma where the meaning would otherwise be ambiguous.
func join(first, second string) string {
	if strings.HasPrefix(first, "at ") && !strings.Contains(first, " of ") || strings.HasPrefix(second, "at ") && !strings.Contains(second, " of ") {
		return first + " " + second
	}
	return first + ", " + second
}

func zoned(zone *time.Location) string {
	if zone == time.UTC {
		return ""
	}
	return ", " + zone.String()
}

func (f fields) allDay() bool { return len(members(f.spec.Hour)) == 24 }

// clockWords describes the times of day.
func (f fields) clockWords() string {
	s, m, h := members(f.spec.Second), members(f.spec.Minute), members(f.spec.Hour)
	sharp := len(s) == 1 && s[0] == 0
	switch {
	case len(s)*len(m)*len(h) <= 6:
		return "at " + list(times(s, m, h))
	case f.allDay() && len(m) == 60 && spacing(s, 60) > 0:
		return each(spacing(s, 60), "second")
	case sharp && f.allDay() && spacing(m, 60) > 0:
		return each(spacing(m, 60), "minute")
	case sharp && run(h) && spacing(m, 60) > 0:
		return fmt.Sprintf("%s from %02d:00 to %02d:%02d", each(spacing(m, 60), "minute"), h[0], h[len(h)-1], m[len(m)-1])
	case sharp && len(m) == 1 && spacing(h, 24) > 0:
		return each(spacing(h, 24), "hour") + map[bool]string{false: fmt.Sprintf(" at minute %d", m[0])}[m[0] == 0]
	case sharp && len(m) == 1 && run(h):
		return fmt.Sprintf("every hour from %02d:%02d to %02d:%02d", h[0], m[0], h[len(h)-1], m[0])
	case sharp:
		return "at " + field("minute", m, 60) + " of " + field("hour", h, 24)
	}
	return "at " + field("second", s, 60) + " of " + field("minute", m, 60) + " of " + field("hour", h, 24)
}

// times lists the times of day in order, with seconds if any time does not fall on a full minute.
func times(s, m, h []int) (list []string) {
	for _, hour := range h {
		for _, minute := range m {
			for _, second := range s {
				text := fmt.Sprintf("%02d:%02d", hour, minute)
				if s[len(s)-1] != 0 {
					text += fmt.Sprintf(":%02d", second)
				}
				list = append(list, text)
			}
		}
	}
	return list
}

// dayWords describes the days.
func (f fields) dayWords() string {
	days, weekdays, months := members(f.spec.Dom), members(f.spec.Dow), members(f.spec.Month)
	anyDay, anyWeekday := len(days) == 31, len(weekdays) == 7
	either := f.spec.Dom&star == 0 && f.spec.Dow&star == 0
	in, of := "", " of each month"
	if len(months) < 12 {
		names := ranges(months, func(n int) string { return time.Month(n).String() })
		in, of = " in "+names, " of "+names
	}
	switch {
	case anyDay && anyWeekday, either && (anyDay || anyWeekday):
		return "every day" + in
	case anyDay:
		return "on " + weekdayWords(weekdays) + in
	case anyWeekday:
		return dates(days) + of
	}
	if in == "" {
		return dates(days) + of + " and on " + weekdayWords(weekdays)
	}
	return dates(days) + " and on " + weekdayWords(weekdays) + "," + in
}

func dates(days []int) string {
	if d := progression(days); d > 1 {
		return fmt.Sprintf("on every %s day from the %s to the %s", ordinal(d), ordinal(days[0]), ordinal(days[len(days)-1]))
	}
	return "on the " + ranges(days, ordinal)
}

func weekdayWords(days []int) string {
	switch fmt.Sprint(days) {
	case "[1 2 3 4 5]":
		return "weekdays"
	case "[0 6]":
		return "weekends"
	}
	names := make([]string, len(days))
	for i, d := range days {
		names[i] = time.Weekday(d).String() + "s"
	}
	return list(names)
}
