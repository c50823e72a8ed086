package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/scheduler"
)

// expressions draws a random expression with five or six fields. Most expressions fire on most days.
func expressions(t *rapid.T) string {
	parts := []string{
		rapid.SampledFrom([]string{"", "", "0", "*/20", "7,31"}).Draw(t, "second"),
		fieldOf(t, 1), fieldOf(t, 2), "*", "*", "*",
	}
	for i := 3; i < 6; i++ {
		if rapid.IntRange(0, 3).Draw(t, "any") == 0 {
			parts[i] = fieldOf(t, i)
		}
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}

// fieldOf draws a random field that is a list of up to three elements.
func fieldOf(t *rapid.T, i int) string {
	low, high := limits[i][0], limits[i][1]
	var list []string
	for range rapid.IntRange(1, 3).Draw(t, "parts") {
		a := rapid.IntRange(low, high).Draw(t, "from")
		b := rapid.IntRange(a, high).Draw(t, "to")
		step := rapid.IntRange(1, 20).Draw(t, "step")
		list = append(list, rapid.SampledFrom([]string{
			"*", "?", fmt.Sprint(a), fmt.Sprintf("%d-%d", a, b), fmt.Sprintf("*/%d", step), fmt.Sprintf("%d/%d", a, step),
			fmt.Sprintf("%d-%d/%d", a, b, step),
		}).Draw(t, "part"))
	}
	return strings.Join(list, ",")
}

// TestOccurrencesMatchEvaluator compares the fire times of random expressions around every clock change of many zones. The changes
// include shifts of one hour, two hours and half an hour, skipped midnights, and a skipped day.
func TestOccurrencesMatchEvaluator(t *testing.T) {
	t.Parallel()
	for zone, year := range map[string]int{
		"Europe/Zurich": 2026, "America/New_York": 2026, "Australia/Lord_Howe": 2026, "Europe/Dublin": 2026, "Africa/Casablanca": 2026,
		"Asia/Beirut": 2026, "America/St_Johns": 2026, "Antarctica/Troll": 2026, "America/Santiago": 2026, "America/Havana": 2026,
		"Pacific/Chatham": 2026, "Africa/Cairo": 2026, "Pacific/Apia": 2011, "Asia/Pyongyang": 2018, "America/Sao_Paulo": 2018,
		"Europe/Istanbul": 2016, "Asia/Kathmandu": 1985, "America/Juneau": 1983,
		"America/Los_Angeles": 2060, // after the last transition in the zone's table, where its rule applies
	} {
		t.Run(strings.ReplaceAll(zone, "/", " "), func(t *testing.T) {
			t.Parallel()
			list := windows(t, zone, year)
			if len(list) == 0 {
				t.Fatal("no change found")
			}
			rapid.Check(t, func(t *rapid.T) { sameFires(t, rapid.SampledFrom(list).Draw(t, "window")) })
		})
	}
}

func sameFires(t *rapid.T, w window) {
	text := expressions(t)
	minutes := rapid.IntRange(-30*60, 30*60)
	from := w.change.Add(time.Duration(minutes.Draw(t, "from"))*time.Minute + time.Duration(rapid.IntRange(-1, 1).Draw(t, "a little"))*time.Nanosecond)
	until := from.Add(time.Duration(rapid.IntRange(0, 5*60).Draw(t, "minutes"))*time.Minute + time.Second)
	p, ok := read(text)
	if !ok {
		t.Fatalf("the evaluator cannot read %q", text)
	}
	calendar, err := scheduler.Parse(text, w.zone, w.start.AddDate(-1, 0, 0))
	if err != nil {
		t.Skip("the expression never fires: " + err.Error())
	}
	want := slices.DeleteFunc(w.fires(p), func(m time.Time) bool { return !m.After(from) || m.After(until) })
	var got []time.Time
	for next := calendar.Next(from); !next.IsZero() && !next.After(until); next = calendar.Next(next) {
		got = append(got, next)
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Fatalf("%q in %s after %s:\n got %v\nwant %v", text, w.zone, from, got, want)
	}
	latest := time.Time{}
	if len(want) > 0 {
		latest = want[len(want)-1]
	}
	if l := calendar.Latest(from, until); !l.Equal(latest) {
		t.Fatalf("%q in %s: latest after %s until %s is %s, want %s", text, w.zone, from, until, l, latest)
	}
	loc, _ := time.LoadLocation(w.zone)
	for i := 1; i < len(got); i++ {
		if before, after := got[i-1].In(loc).Format(time.DateTime), got[i].In(loc).Format(time.DateTime); before >= after {
			t.Fatalf("%q in %s fires at %s after %s: a wall clock time must not repeat", text, w.zone, after, before)
		}
	}
}

// TestRandomDayFieldsMatchEvaluator compares the fire times of random day fields over twelve years around 2100, which is not a leap year.
func TestRandomDayFieldsMatchEvaluator(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := fmt.Sprintf("0 0 %s %s %s", fieldOf(t, 3), fieldOf(t, 4), fieldOf(t, 5))
		p, _ := read(text)
		begin, end := time.Date(2093, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(2106, 1, 1, 0, 0, 0, 0, time.UTC)
		calendar, err := scheduler.Parse(text, "UTC", begin)
		next := time.Time{} // stays zero if the expression is rejected because it never fires
		if err == nil {
			next = calendar.Next(begin)
		}
		for day := begin.AddDate(0, 0, 1); day.Before(end); day = day.AddDate(0, 0, 1) {
			if fires := p.onDay(day.Month(), day.Day(), day.Weekday()); fires != next.Equal(day) {
				t.Fatalf("%q on %s: %v, and next is %s", text, day, fires, next)
			}
			if next.Equal(day) {
				next = calendar.Next(next)
			}
		}
	})
}

// TestLatestMatchesRepeatedNext compares Latest with repeated calls to Next over random periods of up to three years.
func TestLatestMatchesRepeatedNext(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		text := rapid.SampledFrom([]string{"@every 37h1.5s", "@daily", "0 12 29 2 *", "@at 2027-05-05T05:05", "7 */9 * * mon", "0 0 31 */5 *"}).Draw(t, "expression")
		calendar, err := scheduler.Parse(text, "Europe/Zurich", begin)
		if err != nil {
			t.Fatal(err)
		}
		from := begin.Add(time.Duration(rapid.IntRange(-1e6, 1e8).Draw(t, "from")) * time.Second)
		until := from.Add(time.Duration(rapid.IntRange(-10, 1e8).Draw(t, "for")) * time.Second)
		want := time.Time{}
		for next := calendar.Next(from); !next.IsZero() && !next.After(until); next = calendar.Next(next) {
			want = next
		}
		if got := calendar.Latest(from, until); !got.Equal(want) {
			t.Fatalf("latest of %q after %s until %s is %s, want %s", text, from, until, got, want)
		}
	})
}

// TestWordsTellSchedulesApart compares pairs of expressions that differ in one field. Their words must be equal if and only if their
// meanings are.
func TestWordsTellSchedulesApart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var one [6]string
		for i := range one {
			one[i] = fieldOf(t, i)
		}
		other := one
		i := rapid.IntRange(0, 5).Draw(t, "which")
		other[i] = fieldOf(t, i)
		saysOne, meansOne := sentence(t, one)
		saysOther, meansOther := sentence(t, other)
		if (saysOne == saysOther) != (meansOne == meansOther) {
			t.Fatalf("%v: %s\n%v: %s", one, saysOne, other, saysOther)
		}
	})
}

// said returns the words for an expression and a string that identifies when it fires.
func sentence(t *rapid.T, parts [6]string) (words, means string) {
	text := strings.Join(parts[:], " ")
	calendar, err := scheduler.Parse(text, "UTC", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Skip("the expression never fires: " + err.Error())
	}
	p, _ := read(text)
	days := []bool{}
	for month := range time.Month(12) {
		for day := range 31 {
			for weekday := range time.Weekday(7) {
				days = append(days, p.onDay(month+1, day+1, weekday))
			}
		}
	}
	return calendar.Words(), fmt.Sprint(p.sets[:3], days)
}

func TestMinIntervalOfExpressions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for expression, want := range map[string]time.Duration{
		"* * * * * *": time.Second, "*/15 * * * *": 15 * time.Minute, "0 0,12 1 * *": 12 * time.Hour, "@every 1.5s": 1500 * time.Millisecond,
		"10,13 0 0 1 1 *": 3 * time.Second, "@at 2027-01-01T00:00": 1<<63 - 1, "0 0 29 2 *": (3*365 + 366) * 24 * time.Hour,
	} {
		calendar, err := scheduler.Parse(expression, "UTC", parseTime(t, "2026-01-01T00:00:00Z"))
		is.NoErr(err)
		is.Equal(calendar.MinInterval(), want) // the shortest interval between two occurrences
	}
}
