package runner_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// nightly starts a program that declares the schedule "nightly", and then stops the program.
func nightly(t *testing.T, pool *pgxpool.Pool, expression string, options ...runner.ScheduleOption) {
	t.Helper()
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	r.DeclareSchedule("nightly", expression, rawArgs("k", `{"year":2026}`), options...)
	run(t, r)()
}

// This test checks only the declaration; TestMissedOccurrencesPolicy checks the policy's effect.
func TestDeclaredSkipMissedPolicy(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	nightly(t, pool, "30 2 * * *", runner.SkipMissed())
	s, err := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed}).Admin("").ScheduleByName(t.Context(), "nightly")
	is.NoErr(err)
	is.Equal(s.Missed, job.MissedSkip)
}

func TestRedeclaredScheduleAfterOperatorChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	now := func() job.ScheduleUse {
		t.Helper()
		list, err := r.Admin("").Schedules(t.Context())
		is.NoErr(err)
		is.Equal(len(list), 1)
		return list[0]
	}
	nightly(t, pool, "30 2 * * *", runner.Zone("Europe/Zurich"), runner.Lane("default"), runner.Subject("all"), runner.Key("tenant"), runner.SkipOverlap(), runner.CatchUp(3))
	s := now()
	is.True(s.FromCode)
	is.Equal(s.Words, "at 02:30 every day, Europe/Zurich")
	is.Equal(s.ScheduleSetting, job.ScheduleSetting{
		Expression: "30 2 * * *", Zone: "Europe/Zurich", Kind: "k", Args: json.RawMessage(`{"year":2026}`), Lane: "default", Subject: "all", Key: "tenant",
		Priority: job.DefaultPriority, Missed: job.MissedCatchUp, CatchUp: 3, Overlap: job.OverlapSkip,
	})
	changed, audited := s.UpdatedAt, queryOne[int](t, pool, `select count(*) from trapeze.audit`)
	nightly(t, pool, "30 2 * * *", runner.Zone("Europe/Zurich"), runner.Lane("default"), runner.Subject("all"), runner.Key("tenant"), runner.SkipOverlap(), runner.CatchUp(3))
	is.Equal(now().UpdatedAt, changed) // declaring the same schedule again changes nothing
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.audit`), audited)

	expression, subject := "15 4 * * *", "some"
	_, err := r.Admin("ann").SetSchedule(t.Context(), "nightly", job.ScheduleChange{Expression: &expression, Subject: &subject})
	is.NoErr(err)
	nightly(t, pool, "45 1 * * *", runner.Zone("UTC"), runner.Priority(-5), runner.Subject("all"))
	s = now()
	is.Equal(s.Expression, "15 4 * * *") // ann's value wins even though the declaration has changed
	is.Equal(s.Subject, "some")          // ann's value wins; the declaration has not changed
	is.Equal(s.Zone, "UTC")              // only the program has set the zone, so its new value applies
	is.Equal(s.Priority, -5)
	is.Equal(s.Lane, "")
	is.Equal(s.Overlap, job.OverlapQueue)

	_, err = r.Admin("ann").PauseSchedule(t.Context(), "nightly")
	is.NoErr(err)
	nightly(t, pool, "45 1 * * *")
	is.True(now().Paused) // restarting the program does not resume the schedule

	is.NoErr(r.Admin("ann").DeleteSchedule(t.Context(), "nightly"))
	is.Equal(column[string](t, pool, `select args::text || subject || unique_key from trapeze.schedules`), []string{"{}"}) // ann's changes are gone
	nightly(t, pool, "50 1 * * *")
	list, err := r.Admin("").Schedules(t.Context())
	is.NoErr(err)
	is.Equal(len(list), 0) // a deleted schedule stays deleted
	_, err = r.Admin("ann").SetSchedule(t.Context(), "nightly", job.ScheduleChange{Existing: true})
	is.True(errors.Is(err, job.ErrUnknownSchedule))
	done, err := r.Admin("ann").SetSchedule(t.Context(), "nightly", job.ScheduleChange{})
	is.NoErr(err)
	is.True(done.Created)
	is.Equal(now().Expression, "50 1 * * *") // the schedule is restored as declared
	is.True(!now().Paused)
}

func TestDeclarationOverOperatorSchedule(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Admin("ann").SetSchedule(t.Context(), "nightly", every("@hourly"))
	is.NoErr(err)
	nightly(t, pool, "30 2 * * *")
	one, err := r.Admin("").Schedules(t.Context())
	is.NoErr(err)
	is.Equal(one[0].Expression, "@hourly")
	is.Equal(string(one[0].Args), "{}")
	is.True(one[0].FromCode) // later changes to the declaration take effect
	nightly(t, pool, "30 2 * * *", runner.Zone("Europe/Zurich"))
	one, err = r.Admin("").Schedules(t.Context())
	is.NoErr(err)
	is.Equal(one[0].Zone, "Europe/Zurich")
	is.Equal(one[0].Expression, "@hourly")
}

func TestInvalidScheduleDeclarations(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, declare := range map[string]func(r *runner.Runner){
		"expression": func(r *runner.Runner) { r.DeclareSchedule("s", "whenever", rawArgs("k")) },
		"too often":  func(r *runner.Runner) { r.DeclareSchedule("s", "* * * * * *", rawArgs("k")) },
		"zone":       func(r *runner.Runner) { r.DeclareSchedule("s", "@daily", rawArgs("k"), runner.Zone("Mars/Olympus")) },
		"kind":       func(r *runner.Runner) { r.DeclareSchedule("s", "@daily", rawArgs("unknown")) },
		"name":       func(r *runner.Runner) { r.DeclareSchedule("no name", "@daily", rawArgs("k")) },
		"delay":      func(r *runner.Runner) { r.DeclareSchedule("s", "@daily", rawArgs("k"), runner.Delay(1)) },
		"chain":      func(r *runner.Runner) { r.DeclareSchedule("s", "@daily", runner.Chain(rawArgs("k"), rawArgs("k"))) },
		"catch up":   func(r *runner.Runner) { r.DeclareSchedule("s", "@daily", rawArgs("k"), runner.CatchUp(1001)) },
		"no args":    func(r *runner.Runner) { r.DeclareSchedule("s", "@daily", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := newRunner(t, pool, runner.Options{MinScheduleInterval: 2e9}, map[string]handler{"k": succeed})
			declare(r)
			err := r.Run(t.Context())
			is.True(errors.Is(err, job.ErrInvalidSchedule) || errors.Is(err, job.ErrUnknownKind))
		})
	}
	is := is.New(t)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules`), 0)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	r.DeclareSchedule("s", "@daily", rawArgs("k"))
	r.DeclareSchedule("s", "@hourly", rawArgs("k"))
	r.DeclareSchedule("t", "never", rawArgs("k"))
	err := r.Run(t.Context()) // all mistakes at once
	is.True(strings.Contains(err.Error(), `schedule "s" is declared twice`) && strings.Contains(err.Error(), `schedule "t"`))
}

func TestScheduleChangesInAuditLog(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	change := every("@hourly")
	change.DryRun = true
	done, err := r.Admin("ann").SetSchedule(t.Context(), "s", change)
	is.NoErr(err)
	is.True(done.Created && done.DryRun && len(done.NextFires) == 5)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedules`), 0) // a dry run changes nothing
	change.DryRun = false
	_, err = r.Admin("ann").SetSchedule(t.Context(), "s", change)
	is.NoErr(err)
	again, err := r.Admin("ann").SetSchedule(t.Context(), "s", change)
	is.NoErr(err)
	is.Equal(again.Changed, []string{}) // a change that has no effect is not recorded
	changed, err := r.Admin("bob").PauseSchedule(t.Context(), "s")
	is.NoErr(err)
	is.True(changed)
	changed, err = r.Admin("bob").PauseSchedule(t.Context(), "s")
	is.NoErr(err)
	is.True(!changed)
	list, err := r.Admin("").Schedules(t.Context())
	is.NoErr(err)
	is.Equal(len(list[0].NextFires), 0) // a paused schedule has no next occurrences
	f, err := r.Admin("bob").TriggerSchedule(t.Context(), "s", nil)
	is.NoErr(err)
	is.True(f.Manual && f.Outcome == job.OccurrenceFired) // a paused schedule can still be triggered
	is.Equal(get(t, r, *f.JobID).Kind, "k")
	changed, err = r.Admin("bob").ResumeSchedule(t.Context(), "s")
	is.NoErr(err)
	is.True(changed)
	list, err = r.Admin("").Schedules(t.Context())
	is.NoErr(err)
	is.Equal(len(list[0].NextFires), 5)
	is.Equal(len(list[0].LastFires), 1)
	is.Equal(list[0].LastFires[0].State, job.Pending)
	is.NoErr(r.Admin("bob").DeleteSchedule(t.Context(), "s"))
	is.True(errors.Is(r.Admin("bob").DeleteSchedule(t.Context(), "s"), job.ErrUnknownSchedule))
	_, err = r.Admin("bob").TriggerSchedule(t.Context(), "s", nil)
	is.True(errors.Is(err, job.ErrUnknownSchedule))
	is.Equal(len(occurrences(t, r, "s")), 1) // deleting a schedule keeps its history
	is.Equal(column[string](t, pool, `select actor || ' ' || action || ' ' || target from trapeze.audit order by id`), []string{
		"ann schedule.set schedule s", "bob schedule.pause schedule s", "bob schedule.trigger schedule s", "bob schedule.resume schedule s",
		"bob schedule.delete schedule s",
	})
	is.Equal(column[string](t, pool, `select actor || ' ' || event || ' ' || message from trapeze.job_events where event like 'schedule.%' order by xid`), []string{
		"ann schedule.changed s", "bob schedule.paused s", "bob schedule.fired s", "bob schedule.resumed s", "bob schedule.deleted s",
	})
}
