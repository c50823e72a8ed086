package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func TestScheduleCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	dry := db.ok("cron", "set", "nightly", "30 2 * * *", "recalculate", "--zone", "Europe/Zurich", "--dry-run")
	is.True(strings.HasPrefix(dry, "schedule nightly would be created\nrecalculate, "))
	is.Equal(strings.Count(dry, "\n  20"), 5)      // the next five occurrences
	is.Equal(strings.Count(dry, " 02:30:00+0"), 5) // in the schedule's local time
	is.Equal(db.ok("cron", "ls", "--json"), "")
	db.ok("cron", "set", "nightly", "30 2 * * *", "recalculate", "--args", `{"year":2025}`, "--overlap", "skip", "--priority", "-5",
		"--missed", "catch_up", "--catch-up", "3", "--unique", "u", "--subject", "s", "--lane", "default", "--reason", "nightly figures")
	changed := decoded[job.ScheduleChanged](t, db.ok("cron", "set", "nightly", "--zone", "Europe/Zurich", "--json"))
	is.Equal(changed.Changed, []string{"zone"}) // only the zone has changed
	is.Equal(*changed.After, job.ScheduleSetting{Expression: "30 2 * * *", Zone: "Europe/Zurich", Kind: "recalculate",
		Args: json.RawMessage(`{"year":2025}`), Lane: "default", Subject: "s", Priority: -5, UniqueKey: "u", Missed: job.MissedCatchUp, CatchUp: 3, Overlap: job.OverlapSkip})
	is.True(strings.Contains(db.ok("cron", "ls"), " 02:30:00+0"))
	is.True(strings.HasPrefix(db.ok("cron", "set", "nightly", "0 4 * * *"), "schedule nightly changed: expression\n"))
	is.True(strings.HasPrefix(db.ok("cron", "set", "nightly", "0 4 * * *"), "schedule nightly unchanged\n"))

	is.Equal(db.ok("cron", "pause", "nightly"), "schedule nightly paused\n")
	is.Equal(db.ok("cron", "pause", "nightly"), "schedule nightly already paused\n")
	is.True(strings.Contains(db.ok("cron", "ls"), "paused"))
	is.True(strings.HasSuffix(db.ok("cron", "set", "nightly", "--priority", "1"), "The schedule is paused; resume it with trapeze cron resume nightly\n"))
	is.Equal(db.ok("cron", "resume", "nightly"), "schedule nightly resumed\n")
	id := strings.TrimSpace(db.ok("cron", "trigger", "nightly"))
	is.Equal(db.job(id).Kind, "recalculate")
	held := db.run("cron", "trigger", "nightly")
	is.Equal(held.code, 1) // the first job still holds the unique key
	is.True(strings.Contains(held.err, "job "+id+" holds the unique key"))
	fires := strings.Split(strings.TrimSpace(db.ok("cron", "occurrences", "nightly", "--json")), "\n")
	is.Equal(len(fires), 2)
	is.Equal(decoded[job.Occurrence](t, fires[0]).Outcome, job.OccurrenceDuplicate) // the newest comes first
	is.True(strings.Contains(db.ok("cron", "show", "nightly"), "catch_up: a job for each of the latest 3"))
	is.True(strings.Contains(db.ok("cron", "occurrences", "nightly", "--limit", "1"), "triggered; job "+id))
	is.Equal(db.ok("cron", "rm", "nightly"), "schedule nightly deleted\n")
	is.Equal(db.run("cron", "rm", "nightly").code, 1) // the schedule no longer exists

	trail, err := store.New(t.Context(), pgtest.Connect(t, db.url), store.Options{})
	is.NoErr(err)
	defer trail.Close()
	list, err := admin.AuditTrail(t.Context(), trail, admin.AuditFilter{Target: "schedule nightly", Limit: 100})
	is.NoErr(err)
	first := list[len(list)-1]
	is.Equal([]string{first.Action, first.Source, first.Reason, first.Actor}, []string{"schedule.set", "cli", "nightly figures", cli.Operator()})
	is.True(!strings.Contains(string(first.After), "2025")) // arguments are not recorded, because they may contain secrets
}

func TestInvalidScheduleCommand(t *testing.T) {
	t.Parallel()
	db := database{t, pgtest.URL(t)}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"set", "x", "30 2 * *", "a.kind"}, 2, "want five"},
		{[]string{"set", "x", "@daily", "a.kind", "--zone", "Mars"}, 2, "Mars"},
		{[]string{"set", "x", "@daily", "a.kind", "--missed", "perhaps"}, 2, "coalesce"},
		{[]string{"set", "x", "@daily", "a.kind", "--args", "{"}, 2, "--args"},
		{[]string{"set", "x y", "@daily", "a.kind"}, 2, "letters"},
		{[]string{"set", "x", "@daily", "a.kind", "--lane", "nowhere"}, 1, "nowhere"},
		{[]string{"set", "x", "--zone", "UTC"}, 1, "unknown schedule"}, // a new schedule needs an expression and a kind
		{[]string{"set", "x", "@daily"}, 1, "unknown schedule"},
		{[]string{"set"}, 2, "--help"},
		{[]string{"show", "x"}, 1, "unknown schedule"},
		{[]string{"occurrences", "x"}, 1, "unknown schedule"},
		{[]string{"trigger", "x"}, 1, "unknown schedule"},
		{[]string{"occurrences", "x", "--limit", "0"}, 2, "--limit"},
		{[]string{"next", "30 2 * *"}, 2, "want five"},
		{[]string{"next", "@daily", "-n", "0"}, 2, "-n 0"},
		{[]string{"next", "@daily", "--from", "soon"}, 2, "--from"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			is := is.New(t)
			s := db.run(append([]string{"cron"}, c.args...)...)
			is.Equal(s.code, c.code)
			is.True(strings.Contains(s.err, c.says)) // the error names the remedy
		})
	}
}

// In Zurich, clocks skip an hour on 29 March 2026 and repeat an hour on 25 October.
func TestNextAsksNoDatabase(t *testing.T) {
	is := is.New(t)
	said := trapeze(t, nil, "cron", "next", "30 2 * * *", "--zone", "Europe/Zurich", "--from", "2026-03-27T12:00:00Z", "-n", "3")
	is.Equal(said.code, 0)
	_, table, _ := strings.Cut(said.out, "\n\n")
	is.Equal(table, `LOCAL                           UTC
Sat 2026-03-28 02:30:00 +01:00  2026-03-28 01:30:00Z
Sun 2026-03-29 03:00:00 +02:00  2026-03-29 01:00:00Z
Mon 2026-03-30 02:30:00 +02:00  2026-03-30 00:30:00Z
`)
	shown := decoded[job.SchedulePreview](t, trapeze(t, nil, "cron", "next", "30 2 * * *", "--zone", "Europe/Zurich", "--from", "2026-10-24T12:00:00Z", "-n", "2", "--json").out)
	is.Equal(shown.NextFires, []time.Time{time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC), time.Date(2026, 10, 26, 1, 30, 0, 0, time.UTC)})
	is.Equal(trapeze(t, nil, "cron", "next", "@at 2027-01-31T03:00", "--from", "2027-01-01T00:00:00Z", "--json").code, 0)
}
