package scheduler_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The evaluator computes fire times independently of the code under test. It parses the fields itself and checks every minute of the wall
// clock for a match. It determines a zone's wall clock time by formatting every minute of UTC in that zone.

// pattern is a parsed cron expression. It holds the numbers that each field matches and whether the field is "*".
type pattern struct {
	sets [6]map[int]bool // second, minute, hour, day of month, month, day of week
	star [6]bool
}

var limits = [6][2]int{{0, 59}, {0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}

var names = [6]string{4: "xxxjanfebmaraprmayjunjulaugsepoctnovdec", 5: "sunmontuewedthufrisat"}

// read parses an expression with five or six fields and reports whether it is valid.
func read(expression string) (p pattern, ok bool) {
	texts := strings.Fields(expression)
	if len(texts) == 5 {
		texts = slices.Insert(texts, 0, "0")
	}
	if len(texts) != 6 {
		return p, false
	}
	for i, text := range texts {
		p.sets[i] = map[int]bool{}
		for _, part := range strings.Split(text, ",") {
			if !p.add(i, part) {
				return p, false
			}
		}
	}
	return p, true
}

// add adds the numbers that one list element matches to the set of field i, and reports whether the element is valid.
func (p *pattern) add(i int, part string) bool {
	bounds, stepText, stepped := strings.Cut(part, "/")
	step := 1
	if stepped {
		var ok bool
		if step, ok = digits(stepText); !ok || step == 0 {
			return false
		}
	}
	from, until := limits[i][0], limits[i][1]
	if bounds == "*" || bounds == "?" {
		p.star[i] = p.star[i] || step == 1
	} else {
		low, high, ranged := strings.Cut(bounds, "-")
		first, ok := number(i, low)
		last := first
		if ranged {
			var okLast bool
			last, okLast = number(i, high)
			ok = ok && okLast
		} else if stepped {
			last = until
		}
		if !ok || first < from || last > until || first > last {
			return false
		}
		from, until = first, last
	}
	for n := from; n <= until; n += step {
		p.sets[i][n] = true
	}
	return true
}

func number(i int, text string) (int, bool) {
	if at := strings.Index(names[i], strings.ToLower(text)); len(text) == 3 && at >= 0 && at%3 == 0 && text[0] > '9' {
		return at / 3, !strings.EqualFold(text, "xxx")
	}
	return digits(text)
}

func digits(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && len(text) <= 2 && text[0] != '+' && text[0] != '-'
}

// onDay reports whether p matches the given day.
func (p pattern) onDay(month time.Month, day int, weekday time.Weekday) bool {
	if !p.sets[4][int(month)] {
		return false
	}
	if p.star[3] || p.star[5] {
		return p.sets[3][day] && p.sets[5][int(weekday)]
	}
	return p.sets[3][day] || p.sets[5][int(weekday)]
}

// minute reports whether p matches the minute of w, a wall clock time represented in UTC.
func (p pattern) minute(w time.Time) bool {
	return p.sets[1][w.Minute()] && p.sets[2][w.Hour()] && p.onDay(w.Month(), w.Day(), w.Weekday())
}

// A window covers the days around a clock change in a zone. Wall clock times are represented in UTC.
type window struct {
	zone   string
	change time.Time
	start  time.Time                  // start of the window
	first  map[time.Time]time.Time    // each wall clock minute, and the first time when the clock shows it
	leaps  map[time.Time][2]time.Time // times when the clock jumps forward, with the expected and the actual wall clock time
}

const toMinute = "2006-01-02 15:04"

// windows finds a zone's clock changes in a year and returns a three-day window around each of them.
func windows(t *testing.T, zone string, year int) (list []window) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	shows := func(t time.Time) string { return t.In(loc).Format("-07:00") }
	for h := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC); h.Year() == year; h = h.Add(time.Hour) {
		if shows(h) == shows(h.Add(time.Hour)) {
			continue
		}
		change := h
		for shows(change) == shows(h) {
			change = change.Add(time.Minute)
		}
		list = append(list, windowAround(zone, loc, change))
	}
	return list
}

func windowAround(zone string, loc *time.Location, change time.Time) window {
	w := window{zone: zone, change: change, start: change.Add(-36 * time.Hour), first: map[time.Time]time.Time{}, leaps: map[time.Time][2]time.Time{}}
	var due time.Time
	for m := w.start; m.Before(change.Add(36 * time.Hour)); m = m.Add(time.Minute) {
		shown, _ := time.Parse(toMinute, m.In(loc).Format(toMinute))
		if _, again := w.first[shown]; !again {
			w.first[shown] = m
		}
		if !due.IsZero() && shown.After(due) {
			w.leaps[m] = [2]time.Time{due, shown}
		}
		due = shown.Add(time.Minute)
	}
	return w
}

// fires returns all fire times of p in the window, in order.
func (w window) fires(p pattern) []time.Time {
	set := map[time.Time]bool{}
	for shown, m := range w.first {
		if p.minute(shown) {
			for s := range p.sets[0] {
				set[m.Add(time.Duration(s)*time.Second)] = true
			}
		}
	}
	for m, leap := range w.leaps {
		for wall := leap[0]; wall.Before(leap[1]); wall = wall.Add(time.Minute) {
			if p.minute(wall) {
				set[m] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(set), time.Time.Compare)
}
