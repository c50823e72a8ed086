package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

func TestInvalidExpressionMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expression, zone, want string }{
		{"", "UTC", `expression is missing: want one such as "30 2 * * *"`},
		{"61 2 * * *", "UTC", `minute "61": want 0 to 59`},
		{"* 24 * * *", "UTC", `hour "24": want 0 to 23`},
		{"* * 0 * *", "UTC", `day of the month "0": want 1 to 31`},
		{"* * * 13 *", "UTC", `month "13": want 1 to 12, or jan to dec`},
		{"* * * * 7", "UTC", `day of the week "7": want 0 (sun) to 6 (sat)`},
		{"* * * * mon#1", "UTC", `day of the week "mon#1"`},
		{"x * * * * *", "UTC", `second "x"`},
		{"*-5 * * * *", "UTC", `minute "*-5"`},
		{", * * * *", "UTC", `minute ","`},
		{"+5 * * * *", "UTC", `minute "+5"`},
		{"*/0 * * * *", "UTC", `minute "*/0"`},
		{"2 * *", "UTC", `has 3 fields: want five`},
		{"@dayly", "UTC", `unknown expression "@dayly": want @hourly, @daily`},
		{"TZ=UTC * * * * *", "UTC", `set the time zone separately`},
		{"TZ=", "UTC", `set the time zone separately`},
		{"@every 10", "UTC", `want one such as "@every 15m"`},
		{"@every 1d", "UTC", `want one such as "@every 15m"`},
		{"@every 999ms", "UTC", `shorter than a second`},
		{"@every 1.0000001s", "UTC", `finer than microseconds`},
		{"@at tomorrow", "UTC", `want one such as "@at 2027-01-31T03:00"`},
		{"@at 2027-01-31T03:00:00.5", "UTC", `want one such as "@at 2027-01-31T03:00"`},
		{"@at 2027-02-30T03:00", "UTC", `want one such as "@at 2027-01-31T03:00"`},
		{"@at 2020-01-01T03:00", "UTC", `after 2026-01-01T00:00:00Z: that time has passed`},
		{"0 0 30 2 *", "UTC", `never fires within 10 years`},
		{strings.Repeat("1,", 100) + "1 * * * *", "UTC", `expression of 209 bytes, at most 200`},
		{"@daily", "Local", `zone "Local" depends on the machine: want an IANA time zone such as "Europe/Zurich"`},
		{"@daily", "localtime", `depends on the machine`},
		{"@daily", "Europe/Zürich", `unknown zone "Europe/Zürich": want an IANA time zone`},
		{"@daily", "../etc/passwd", `unknown zone`},
		{"@daily", "Europe", `unknown zone`},
		{"61 2 * * *", "Mars", `minute "61"`}, // the zone is wrong, too
	} {
		t.Run(c.expression+" "+c.zone, func(t *testing.T) {
			is := is.New(t)
			_, err := scheduler.Parse(c.expression, c.zone, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			is.True(errors.Is(err, job.ErrInvalidSchedule))
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s\ndoes not contain\n%s", err, c.want)
			}
		})
	}
}
