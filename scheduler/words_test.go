package scheduler_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/scheduler"
)

func TestExpressionInWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expression, zone, want string }{
		{"30 2 * * *", "Europe/Zurich", "at 02:30 every day, Europe/Zurich"},
		{"30 2 * * *", "UTC", "at 02:30 every day"},
		{"30 2 * * *", "", "at 02:30 every day"},
		{"30 2 * * *", "Etc/UTC", "at 02:30 every day, Etc/UTC"},
		{"15 30 2 * * *", "UTC", "at 02:30:15 every day"},
		{"*/15 * * * *", "UTC", "every 15 minutes"},
		{"0,30 * * * *", "UTC", "every 30 minutes"},
		{"* * * * *", "Asia/Tokyo", "every minute, Asia/Tokyo"},
		{"* * * * * *", "UTC", "every second"},
		{"*/10 * * * * *", "UTC", "every 10 seconds"},
		{"*/7 * * * *", "UTC", "at every 7th minute from 0 to 56 of every hour"},
		{"5/15 * * * *", "UTC", "at every 15th minute from 5 to 50 of every hour"},
		{"@hourly", "UTC", "every hour"},
		{"30 * * * *", "UTC", "every hour at minute 30"},
		{"0 */2 * * *", "UTC", "every 2 hours, every day"},
		{"0 */6 * * *", "UTC", "at 00:00, 06:00, 12:00 and 18:00 every day"},
		{"*/15 9-17 * * mon-fri", "UTC", "every 15 minutes from 09:00 to 17:45, on weekdays"},
		{"0 9-17 * * 1-5", "UTC", "every hour from 09:00 to 17:00, on weekdays"},
		{"0 6 * * 1-5", "UTC", "at 06:00 on weekdays"},
		{"0 6 * * sat,sun", "UTC", "at 06:00 on weekends"},
		{"0 6 * * mon,wed", "UTC", "at 06:00 on Mondays and Wednesdays"},
		{"*/5 * * * fri", "UTC", "every 5 minutes, on Fridays"},
		{"@weekly", "UTC", "at 00:00 on Sundays"},
		{"@monthly", "UTC", "on the 1st of each month at 00:00"},
		{"@yearly", "UTC", "on the 1st of January at 00:00"},
		{"0 0 1,15,22-31 */3 *", "UTC", "on the 1st, 15th and 22nd to 31st of January, April, July and October at 00:00"},
		{"0 0 */2 * *", "UTC", "on every 2nd day from the 1st to the 31st of each month at 00:00"},
		{"0 0 13 * fri", "UTC", "on the 13th of each month and on Fridays at 00:00"},
		{"0 0 13 1 fri", "UTC", "on the 13th and on Fridays, in January at 00:00"},
		{"0 0 1-31 * fri", "UTC", "at 00:00 every day"},
		{"0 0 * 6-8 *", "UTC", "at 00:00 every day in June to August"},
		{"* * 1 * *", "UTC", "on the 1st of each month, every minute"},
		{"3,4,9 1-5 * * *", "UTC", "at minutes 3, 4 and 9 of hours 1 to 5, every day"},
		{"10 3,4,9 1-5 * * *", "UTC", "at second 10 of minutes 3, 4 and 9 of hours 1 to 5, every day"},
		{"@every 15m", "Europe/Zurich", "every 15 minutes"},
		{"@every 1h", "UTC", "every hour"},
		{"@every 1h30m", "UTC", "every 90 minutes"},
		{"@every 1.5s", "UTC", "every 1.5s"},
		{"@at 2027-01-31T03:00", "Europe/Zurich", "once, on 2027-01-31 at 03:00:00, Europe/Zurich"},
		{"@at 2027-01-31T03:00Z", "Europe/Zurich", "once, on 2027-01-31 at 04:00:00, Europe/Zurich"},
		{"@at 2027-01-31T03:00:05", "UTC", "once, on 2027-01-31 at 03:00:05"},
		{"@at 2027-10-31T02:30+02:00", "Europe/Zurich", "once, on 2027-10-31 at 02:30:00, Europe/Zurich"},
		{"@at 2027-10-31T02:30+01:00", "Europe/Zurich", "once, on 2027-10-31 at 02:30:00 (+01:00), Europe/Zurich"},
	} {
		t.Run(c.expression+" "+c.zone, func(t *testing.T) {
			is := is.New(t)
			calendar, err := scheduler.Parse(c.expression, c.zone, time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
			is.NoErr(err)
			is.Equal(calendar.Words(), c.want)
		})
	}
}
