package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestStatsCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	is.Equal(db.ok("stats"), "KIND  FINISHED  FAILED  CANCELLED  WAIT-P50  WAIT-P95  RUN-P50  RUN-P95  TREND\n"+
		"all   0         0       0          -         -         -        -        "+strings.Repeat("·", 31)+"\n")
	_, err := pgtest.Connect(t, db.url).Exec(t.Context(), `
		insert into trapeze.stats (at, lane, kind, state, pod, jobs, wait, run) values
			(now() - interval '2 minutes', 'default', 'mail', 'succeeded', gen_random_uuid(), 80, array[80], array[0, 0, 0, 0, 0, 0, 0, 80]),
			(now() - interval '40 minutes', 'slow', 'report', 'failed', gen_random_uuid(), 2, array[0, 2], array[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
			(now() - interval '20 hours', 'slow', 'report', 'cancelled', null, 7, '{}', '{}')`)
	is.NoErr(err)
	lines := strings.Split(strings.TrimSpace(db.ok("stats")), "\n")
	is.Equal(len(lines), 4)
	is.Equal(strings.Fields(lines[1])[:6], []string{"mail", "80", "0", "0", "50µs", "100µs"})
	is.Equal(strings.Fields(lines[2])[:4], []string{"report", "2", "2", "0"})
	is.Equal(strings.Fields(lines[3])[:4], []string{"all", "82", "2", "0"})
	is.True(strings.Contains(lines[1], "█") && strings.Count(lines[2], "·") == 30) // each kind has a single bar
	lanes := strings.Fields(strings.Split(db.ok("stats", "--by", "lane", "--window", "24h"), "\n")[2])
	is.Equal(lanes[:4], []string{"slow", "9", "2", "7"})
	s := decoded[job.Stats](t, db.ok("stats", "--window", "7d", "--lane", "slow", "--json"))
	is.Equal([]any{s.Window.Duration(), s.Total.Finished, s.Total.Failed, len(s.Of)}, []any{168 * time.Hour, int64(9), int64(2), 1})
	refused := db.run("stats", "--window", "2h")
	is.Equal(refused.code, 2)
	is.True(strings.Contains(refused.err, `window "2h": want 1h, 24h, 7d or 30d`))
}
