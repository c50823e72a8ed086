package scheduler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// fires returns the fire times in (after, until], in RFC 3339 format with the zone's offset.
func fires(t *testing.T, expression, zone, after, until string) []string {
	t.Helper()
	from, end := parseTime(t, after), parseTime(t, until)
	c, err := scheduler.Parse(expression, zone, from)
	if err != nil {
		t.Fatal(err)
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for next := c.Next(from); !next.IsZero() && !next.After(end); next = c.Next(next) {
		list = append(list, next.In(loc).Format(time.RFC3339))
	}
	return list
}

func parseTime(t *testing.T, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

func TestFiresOnDaysOfChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim, expression, zone, after, until string
		want                                  []string
	}{
		{"a time in the gap fires right after it", "30 2 * * *", "Europe/Zurich", "2026-03-28T12:00:00+01:00", "2026-03-30T12:00:00+02:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"several times in the gap fire once", "*/20 2 * * *", "Europe/Zurich", "2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00",
			[]string{"2026-03-29T03:00:00+02:00"}},
		{"a time in the gap and the time right after it share a fire", "30 2,3 * * *", "Europe/Zurich", "2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"}},
		{"a doubled time fires the first time", "30 2 * * *", "Europe/Zurich", "2026-10-24T12:00:00+02:00", "2026-10-26T12:00:00+01:00",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"nothing fires again in the second pass", "*/15 * * * *", "Europe/Zurich", "2026-10-25T02:20:00+01:00", "2026-10-25T03:15:00+01:00",
			[]string{"2026-10-25T03:00:00+01:00", "2026-10-25T03:15:00+01:00"}},
		{"every fifteen minutes across the gap", "*/15 * * * *", "Europe/Zurich", "2026-03-29T01:29:59+01:00", "2026-03-29T03:30:00+02:00",
			[]string{"2026-03-29T01:30:00+01:00", "2026-03-29T01:45:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:15:00+02:00", "2026-03-29T03:30:00+02:00"}},
		{"every hour across the doubled hour", "@hourly", "Europe/Zurich", "2026-10-25T01:30:00+02:00", "2026-10-25T04:00:00+01:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00", "2026-10-25T04:00:00+01:00"}},
		{"a fixed interval ignores the change", "@every 30m", "Europe/Zurich", "2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:00:00+01:00"}},
		{"New York's gap", "30 2 * * *", "America/New_York", "2026-03-07T12:00:00-05:00", "2026-03-09T12:00:00-04:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		{"New York's doubled hour", "30 1 * * *", "America/New_York", "2026-10-31T12:00:00-04:00", "2026-11-02T12:00:00-05:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		{"a gap of half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-04T12:00:00Z",
			[]string{"2026-10-04T02:30:00+11:00"}},
		{"a doubled half hour", "*/15 1,2 * * *", "Australia/Lord_Howe", "2026-04-04T13:59:00Z", "2026-04-04T15:59:00Z",
			[]string{"2026-04-05T01:00:00+11:00", "2026-04-05T01:15:00+11:00", "2026-04-05T01:30:00+11:00", "2026-04-05T01:45:00+11:00",
				"2026-04-05T02:00:00+10:30", "2026-04-05T02:15:00+10:30"}},
		{"a skipped day fires once, right after it", "0 */6 * * *", "Pacific/Apia", "2011-12-29T17:00:00-10:00", "2011-12-31T06:00:00+14:00",
			[]string{"2011-12-29T18:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T06:00:00+14:00"}},
		{"a midnight that does not exist", "@daily", "Asia/Beirut", "2026-03-28T12:00:00+02:00", "2026-03-30T12:00:00+03:00",
			[]string{"2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"}},
		{"once, in the gap", "@at 2026-03-29T02:30", "Europe/Zurich", "2026-01-01T00:00:00Z", "2030-01-01T00:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00"}},
		{"once, in the doubled hour", "@at 2026-10-25T02:30:05", "Europe/Zurich", "2026-01-01T00:00:00Z", "2030-01-01T00:00:00Z",
			[]string{"2026-10-25T02:30:05+02:00"}},
		{"once, in the second pass, by its offset", "@at 2026-10-25T02:30+01:00", "Europe/Zurich", "2026-01-01T00:00:00Z", "2030-01-01T00:00:00Z",
			[]string{"2026-10-25T02:30:00+01:00"}},
		{"leap days", "0 12 29 2 *", "UTC", "2024-01-01T00:00:00Z", "2032-12-31T00:00:00Z",
			[]string{"2024-02-29T12:00:00Z", "2028-02-29T12:00:00Z", "2032-02-29T12:00:00Z"}},
		{"leap days around 2100, which has none", "0 12 29 2 *", "UTC", "2092-03-01T00:00:00Z", "2105-01-01T00:00:00Z",
			[]string{"2096-02-29T12:00:00Z", "2104-02-29T12:00:00Z"}},
		{"the last day of a leap year", "30 18 31 12 *", "America/New_York", "2028-12-31T12:00:00-05:00", "2028-12-31T23:00:00-05:00",
			[]string{"2028-12-31T18:30:00-05:00"}},
		{"the last day of a leap year, far ahead", "0 0 1 1 *", "Europe/Zurich", "2060-12-31T12:00:00+01:00", "2061-02-01T00:00:00+01:00",
			[]string{"2061-01-01T00:00:00+01:00"}},
		{"six fields", "*/20 59 23 31 12 *", "UTC", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z",
			[]string{"2026-12-31T23:59:00Z", "2026-12-31T23:59:20Z", "2026-12-31T23:59:40Z"}},
		{"a day of the month or of the week", "0 0 13 * fri", "UTC", "2026-11-01T00:00:00Z", "2026-12-14T00:00:00Z",
			[]string{"2026-11-06T00:00:00Z", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z", "2026-12-04T00:00:00Z", "2026-12-11T00:00:00Z", "2026-12-13T00:00:00Z"}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			is := is.New(t)
			is.Equal(fires(t, c.expression, c.zone, c.after, c.until), c.want)
		})
	}
}

func TestExpressionWithoutOccurrences(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	began := time.Now()
	for _, expression := range []string{"0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "@at 2020-01-01T00:00", "@every 100000h"} {
		_, err := scheduler.Parse(expression, "UTC", parseTime(t, "2026-01-01T00:00:00Z"))
		is.True(errors.Is(err, job.ErrInvalidSchedule)) // the expression never fires, or only in the very distant future
	}
	is.True(time.Since(began) < 10*time.Second) // the search terminates
}

func TestRareOccurrenceSearchTime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	began := time.Now()
	c, err := scheduler.Parse("59 59 23 29 2 *", "America/New_York", parseTime(t, "2026-01-01T00:00:00Z"))
	is.NoErr(err)
	is.Equal(c.MinInterval(), (3*365+366)*24*time.Hour)
	is.Equal(c.Latest(parseTime(t, "1900-01-01T00:00:00Z"), parseTime(t, "9000-01-01T00:00:00Z")), parseTime(t, "8996-03-01T04:59:59Z")) // the last of 1690 leap days
	is.True(time.Since(began) < 10*time.Second)
}
