package e2e

import (
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

func TestLaneCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	dry := db.ok("lane", "set", "reports", "slots=3", "kinds=report,export", "--dry-run")
	is.Equal(dry, "lane reports would be created; 0 running, 0 waiting, 0 moved\n")
	is.True(!strings.Contains(db.ok("lanes"), "reports"))
	made := db.ok("lane", "set", "reports", "slots=3", "kinds=report,export", "max_age_s=48h", "inactivity_timeout_s=0", "--reason", "month's end")
	is.Equal(made, "lane reports created; 0 running, 0 waiting, 0 moved\n") // "created" alerts the operator to a misspelled name
	is.Equal(db.ok("lane", "set", "reports", "slots=3"), "lane reports unchanged; 0 running, 0 waiting, 0 moved\n")
	lines := strings.Split(strings.TrimSpace(db.ok("lanes", "--json")), "\n")
	is.Equal(len(lines), 2)
	lane := decoded[job.LaneUse](t, lines[1])
	is.Equal([]any{*lane.Slots, lane.MaxAge.Duration(), lane.InactivityTimeout.Duration()}, []any{3, 48 * time.Hour, time.Duration(0)})
	is.Equal(lane.Kinds, []string{"export", "report"})
	is.True(strings.Contains(db.ok("lanes"), "48h0m0s"))

	id := db.enqueue("report")
	is.Equal(db.job(id).Lane, "reports")
	moved := decoded[job.LaneChanged](t, db.ok("lane", "set", "reports", "slots=none", "kinds=export", "--json"))
	is.Equal(moved.Changed, []string{"slots", "kinds"})
	is.Equal(moved.Moved, 1)
	is.Equal(db.job(id).Lane, "default") // the job has moved to the new lane of its kind
	db.ok("lane", "set", "default", "kinds=")

	db.enqueue("some.kind", "--lane", "reports", "--delay", "1h")
	refused := db.run("lane", "rm", "reports")
	is.Equal(refused.code, 1)
	is.True(strings.Contains(refused.err, "name a lane"))
	is.Equal(db.ok("lane", "rm", "reports", "--move-to", "default"), "lane reports deleted; 0 running, 0 waiting, 1 moved\n")
	is.Equal(db.run("lane", "rm", "reports").code, 1) // the lane no longer exists
	trail, err := store.New(t.Context(), pgtest.Connect(t, db.url), store.Options{})
	is.NoErr(err)
	defer trail.Close()
	list, err := admin.AuditTrail(t.Context(), trail, admin.AuditFilter{Target: "lane reports"})
	is.NoErr(err)
	is.Equal(len(list), 3)
	first := list[2]
	is.Equal([]string{first.Action, first.Source, first.Reason, first.Actor}, []string{"lane.set", "cli", "month's end", cli.Operator()})
}

func TestLaneEngineMoveCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pool := pgtest.Connect(t, db.url)
	refused := db.run("lane", "set", "video", "--engine", "far")
	is.Equal(refused.code, 1)
	is.True(strings.Contains(refused.err, "no pod serves the engine far: start a pod whose program registers it"))
	pgtest.Exec(t, pool, `insert into trapeze.pods (id, name, lease_until, slots, engines) values (gen_random_uuid(), 'silent', now() + interval '1 hour', 1, '{far}')`)
	late := db.run("lane", "set", "video", "--engine", "far", "--timeout", "100ms")
	is.Equal(late.code, 1)
	is.True(strings.Contains(late.err, "1 pod to confirm"))
	is.True(strings.Contains(late.err, "to give it up, run trapeze lane set video --engine postgres"))
	is.True(strings.Contains(db.ok("lanes"), "moving to far"))
	pgtest.Exec(t, pool, `update trapeze.pods set closed_at = now(), closed = 'left'`)
	is.Equal(db.ok("lane", "set", "video", "--engine", "far"), "lane video runs on far\n") // repeating the command completes the move
	is.True(strings.Contains(db.ok("lanes"), "open, far"))
	id := db.enqueue("some.kind", "--lane", "video")
	pgtest.Exec(t, pool, `update trapeze.pods set closed_at = null, closed = null, engines = '{}'`)
	is.True(strings.Contains(db.ok("job", id), `no live pod serves far, the engine of its lane "video"`))
	pgtest.Exec(t, pool, `update trapeze.pods set closed_at = now(), closed = 'left'`)
	is.Equal(db.ok("lane", "set", "video", "--engine", "postgres"), "lane video runs on postgres\n")
}

func TestInvalidLaneSettingCommands(t *testing.T) {
	t.Parallel()
	db := database{t, pgtest.URL(t)}
	for args, says := range map[string]string{
		"lane set default slots":                   "key=value",
		"lane set default slots=many":              "want a whole number, or none",
		"lane set default slots=-1":                "want 0 to 1000000",
		"lane set default slots=1 slots=2":         "given twice",
		"lane set default max_age_s=1500ms":        "whole seconds",
		"lane set default enabled=perhaps":         "true or false",
		"lane set default --engine a/b":            "want postgres, or the name of an engine",
		"lane set default colour=red":              "unknown setting",
		"lane set ../default slots=1":              "letters",
		"lane set":                                 "--help",
		"drain":                                    "want a lane, or a pod",
		"drain default --pod web-1":                "want a lane, or a pod",
		"freeze --wait soon":                       "--help",
		"lane rm default --move-to somewhere-else": "cannot be deleted",
		"lane rm other --move-to other":            "to another lane",
	} {
		t.Run(args, func(t *testing.T) {
			is := is.New(t)
			s := db.run(strings.Fields(args)...)
			is.Equal(s.code, 2)
			is.True(strings.Contains(s.err, says)) // the error names the remedy
		})
	}
}

func TestInvalidLanesVariable(t *testing.T) {
	t.Parallel()
	for value, says := range map[string]string{
		"one=2:a,two=1:b+a": `kind "a" is in lanes "one" and "two"`,
		"one":               "want lanes such as",
		"one=x:a":           "want lanes such as",
		"one=-1":            "slots -1",
		"../one=1":          "letters",
		"one=1:a,one=2:b":   "duplicate lane",
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			s := trapeze(t, []string{"DATABASE_URL=postgres://127.0.0.1:1/x", "TRAPEZE_LANES=" + value}, "serve")
			is.Equal(s.code, 2)
			is.True(strings.Contains(s.err, says))
			is.True(strings.Contains(s.err, "TRAPEZE_LANES"))
		})
	}
}

func TestFourEyesLaneSettingCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	is.True(strings.Contains(db.run("lane", "set", "risky", "four_eyes=true").err, "set requires_approval too"))
	db.ok("lane", "set", "risky", "requires_approval=true", "four_eyes=true")
	is.True(strings.Contains(db.ok("lanes"), "needs approval by another person"))
	id := db.enqueue("some.kind", "--lane", "risky")
	refused := db.run("approve", id)
	is.Equal(refused.code, 1)
	is.True(strings.Contains(refused.err, "another person must approve the job"))
}
