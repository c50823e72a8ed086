package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// FuzzParse checks that any input is either rejected with a reason or yields fire times in ascending order.
func FuzzParse(f *testing.F) {
	for _, expression := range []string{
		"30 2 * * *", "15 30 2 * * *", "*/15 9-17 * * mon-fri", "@daily", "@every 1h30m", "@every 1.000001s", "@at 2027-01-31T03:00",
		"@at 2027-01-31T03:00:05+01:00", "@at 2027-01-31T03:00:05.5Z", "0 0 30 2 *", "0 0 29 2 *", "TZ=", "TZ=UTC * * * * *", "CRON_TZ=x", "@",
		"@every", "@every -1s", "@every 999999999999h", "@at", "", " ", ", * * * *", "1, * * * *", "*-5 * * * *", "+5 * * * *", "5-1 * * * *",
		"*/0 * * * *", "*/99999999999999999999 * * * *", "60 * * * *", "* * * * 7", "* * * * mon#1", "0 0 L * *", "* * * foo *", "*  * *\t* *", "1/2/3 * * * *",
	} {
		f.Add(expression, "Europe/Zurich", int64(1790000000))
	}
	f.Add("* * * * *", "Local", int64(0))
	f.Add("* * * * *", "../../etc/passwd", int64(0))
	f.Add("0 0 1 1 *", "America/New_York", int64(1861920000)) // the last day of 2028
	f.Add("0 0 1 1 *", "UTC", int64(253402300799))            // the last second of 9999
	f.Fuzz(func(t *testing.T, expression, zone string, seconds int64) {
		seconds %= 253402300800 // 1970 to 9999, the last year in RFC 3339, and as many years before 1970
		anchor := time.Unix(seconds, 0)
		calendar, err := scheduler.Parse(expression, zone, anchor)
		if err != nil {
			if !errors.Is(err, job.ErrInvalidSchedule) || len(err.Error()) > 4000 {
				t.Fatalf("%q: %v", expression, err)
			}
			return
		}
		if _, ok := read(expression); !ok && !strings.HasPrefix(strings.TrimSpace(expression), "@") {
			t.Fatalf("the evaluator cannot read %q", expression)
		}
		if calendar.Words() == "" || calendar.MinInterval() <= 0 {
			t.Fatalf("%q: %q, every %s", expression, calendar.Words(), calendar.MinInterval())
		}
		last := calendar.Next(anchor)
		if !last.After(anchor) {
			t.Fatalf("%q in %s after %s: %s", expression, zone, anchor, last)
		}
		for range 5 {
			next := calendar.Next(last)
			if next.IsZero() {
				break
			}
			if !next.After(last) || !calendar.Next(next.Add(-1)).Equal(next) || !calendar.Latest(last, next).Equal(next) {
				t.Fatalf("%q in %s: %s after %s", expression, zone, next, last)
			}
			last = next
		}
	})
}
