package scheduler

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
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

// star is the bit that the cron parser sets for a field given as *.
const star = 1 << 63

// members returns the numbers in one of the cron parser's bit sets, in ascending order.
func members(bits uint64) (list []int) {
	for n := range 60 {
		if bits&(1<<n) != 0 {
			list = append(list, n)
		}
	}
	return list
}

// spacing returns the interval between numbers that start at 0 and are evenly spaced around a clock with n positions. It returns 0 if they
// are not evenly spaced, or if there are fewer than two.
func spacing(set []int, n int) int {
	if len(set) < 2 || set[0] != 0 || n%len(set) != 0 {
		return 0
	}
	for i, v := range set {
		if v != i*n/len(set) {
			return 0
		}
	}
	return n / len(set)
}

// progression returns the interval between evenly spaced numbers. It returns 0 if they are not evenly spaced, or if there are fewer than
// four.
func progression(set []int) int {
	if len(set) < 4 {
		return 0
	}
	for i := range set[1:] {
		if set[i+1]-set[i] != set[1]-set[0] {
			return 0
		}
	}
	return set[1] - set[0]
}

// run reports whether set consists of two or more consecutive numbers.
func run(set []int) bool { return len(set) > 1 && set[len(set)-1]-set[0] == len(set)-1 }

// each returns "every minute" or "every 15 minutes".
func each(n int, unit string) string {
	if n == 1 {
		return "every " + unit
	}
	return fmt.Sprintf("every %d %ss", n, unit)
}

// field returns "every minute", "minute 5", or "minutes 5, 7 and 20 to 30".
func field(unit string, set []int, all int) string {
	switch d := progression(set); {
	case len(set) == all:
		return "every " + unit
	case len(set) == 1:
		return unit + " " + strconv.Itoa(set[0])
	case d > 1:
		return fmt.Sprintf("every %s %s from %d to %d", ordinal(d), unit, set[0], set[len(set)-1])
	}
	return unit + "s " + ranges(set, strconv.Itoa)
}

// ranges lists numbers as text. Three or more consecutive numbers are written as a range, such as "1 to 3".
func ranges(set []int, name func(int) string) string {
	parts := []string{}
	for i := 0; i < len(set); {
		end := i
		for end+1 < len(set) && set[end+1] == set[end]+1 {
			end++
		}
		if end-i < 2 {
			end = i
			parts = append(parts, name(set[i]))
		} else {
			parts = append(parts, name(set[i])+" to "+name(set[end]))
		}
		i = end + 1
	}
	return list(parts)
}

// list returns "a", "a and b", or "a, b and c".
func list(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return strconv.Itoa(n) + suffix
}

// fields is a [rule] that fires when a zone's wall clock shows a time that matches the cron fields.
type fields struct {
	text string // always six fields
	spec *cron.SpecSchedule
	zone *time.Location
}

var macros = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

// fieldNames holds the names and valid values of the six fields.
var fieldNames = [6]struct{ name, want string }{
	{"second", "0 to 59"},
	{"minute", "0 to 59"},
	{"hour", "0 to 23"},
	{"day of the month", "1 to 31"},
	{"month", "1 to 12, or jan to dec"},
	{"day of the week", "0 (sun) to 6 (sat), or the names"},
}

// element matches one element of a field's list. The check is needed because the cron parser is too lenient. It treats "*-5" as "*" and an
// empty list as never, and it accepts "+5". It also accepts any text before a space as a zone.
var element = regexp.MustCompile(`^([*?]|([0-9]{1,2}|[A-Za-z]{3})(-([0-9]{1,2}|[A-Za-z]{3}))?)(/[0-9]{1,2})?$`)

var parser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

func parseFields(text string, zone *time.Location) (rule, error) {
	if strings.HasPrefix(text, "@") {
		macro, known := macros[text]
		if !known {
			return nil, invalid(`unknown expression %q: want @hourly, @daily, @weekly, @monthly, @yearly, "@every 15m" or "@at 2027-01-31T03:00"`, text)
		}
		text = macro
	}
	parts := strings.Fields(text)
	if len(parts) == 5 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 6 {
		return nil, invalid(`expression %q has %d fields: want five (minute, hour, day of the month, month, day of the week), such as `+
			`"30 2 * * *", or six, seconds first`, text, len(parts))
	}
	for i := range parts {
		if err := checkField(parts, i); err != nil {
			return nil, err
		}
	}
	text = strings.Join(parts, " ")
	schedule, err := parser.Parse(text)
	spec, ok := schedule.(*cron.SpecSchedule)
	if err != nil || !ok {
		return nil, invalid("expression %q: %v", text, err)
	}
	spec.Location = time.UTC
	return fields{text, spec, zone}, nil
}

// checkField checks a single field by parsing it with valid values for the others.
func checkField(parts []string, i int) error {
	alone := [6]string{"*", "*", "*", "*", "*", "*"}
	alone[i] = parts[i]
	ok := true
	for e := range strings.SplitSeq(parts[i], ",") {
		ok = ok && element.MatchString(e)
	}
	if ok {
		_, err := parser.Parse(strings.Join(alone[:], " "))
		ok = err == nil
	}
	if !ok {
		return invalid(`%s %q: want %s, as in %q, %q, %q or %q`, fieldNames[i].name, parts[i], fieldNames[i].want, "*", "5", "1-5", "1,3")
	}
	return nil
}

// next searches twice because the cron library gives up after five years.
func (f fields) next(after time.Time) time.Time {
	w := shown(after, f.zone)
	next := f.spec.Next(w)
	if next.IsZero() {
		next = f.spec.Next(w.AddDate(searchYears/2, 0, 0))
	}
	if next.IsZero() {
		return next
	}
	return moment(next, f.zone)
}
