//go:build long

package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A server under libfaketime jumps ahead by ten days and back by one hour. Jobs, delays and retries continue, and the pod logs each jump.
func TestDatabaseClockJumps(t *testing.T) {
	is := is.New(t)
	found, err := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	is.NoErr(err)
	if len(found) == 0 {
		t.Fatal("this machine has no libfaketime, which sets the clock of a PostgreSQL server: install the package faketime")
	}
	dir, err := os.MkdirTemp("", "clock") // t.TempDir is not readable for the server's user
	is.NoErr(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	is.NoErr(os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "time")
	set := func(offset string) { is.NoErr(os.WriteFile(file, []byte(offset+"\n"), 0o644)) }
	set("+0")
	for k, v := range map[string]string{"LD_PRELOAD": found[0], "FAKETIME_TIMESTAMP_FILE": file, "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"} {
		t.Setenv(k, v)
	}
	server, err := pgembed.Start(t.Context(), pgembed.Options{})
	is.NoErr(err)
	t.Cleanup(func() { _ = server.Stop() })
	is.NoErr(os.Unsetenv("LD_PRELOAD")) // t.Setenv restores it
	is.NoErr(migrate.Up(t.Context(), server.URL(), "trapeze"))
	pool := pgtest.Connect(t, server.URL())
	var log podtest.Log
	r := podtest.New(t, pool, runner.Options{HeartbeatInterval: time.Second, LeaseDuration: 4 * time.Second, MaxAttempts: 2, Logger: log.Logger()}, map[string]handler{
		"fine": succeed,
		"flaky": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, errors.New("not yet")
			}
			return runner.Done(nil), nil
		},
	}, runner.Retry(2, runner.Backoff{Base: 100 * time.Millisecond}))
	r.DeclareSchedule("tick", "@every 1s", rawArgs("fine"))
	podtest.Run(t, r)
	logged := func(text string) {
		t.Helper()
		pgtest.Wait(t, "the log says "+text, func() bool { return strings.Contains(log.String(), text) })
	}
	run := func() {
		t.Helper()
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("fine"))).State, job.Succeeded)
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("flaky"))).State, job.Succeeded)
		is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("fine"), runner.Delay(time.Second))).State, job.Succeeded)
		ready, _ := r.Ready()
		is.True(ready)
	}
	run()
	waiting := enqueue(t, r, rawArgs("fine"), runner.Delay(24*time.Hour))
	set("+10d")
	logged("clock was set forward")
	run()
	is.Equal(waitEnded(t, r, waiting).State, job.Succeeded) // due early
	fires := func() int { return queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences`) }
	before := fires()
	pgtest.Wait(t, "the schedule continues", func() bool { return fires() > before+2 })
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.schedule_occurrences where missed > 0`), 1) // one occurrence replaces those of ten days
	is.True(fires() < 90)                                                                                     // those of the last minute count as on time
	waiting = enqueue(t, r, rawArgs("fine"), runner.Delay(time.Minute))
	set("+860400") // ten days less an hour
	logged("clock was set back")
	run()
	before = fires()
	for _, change := range []func(context.Context, string) (bool, error){r.Admin("ann").PauseSchedule, r.Admin("ann").ResumeSchedule} {
		changed, err := change(t.Context(), "tick") // the remedy of doctor for a schedule that waits until the clock has caught up
		is.NoErr(err)
		is.True(changed)
	}
	pgtest.Wait(t, "the schedule fires again", func() bool { return fires() > before+2 })
	is.True(strings.Count(log.String(), "\n") < 100)
	is.True(queryOne[bool](t, pool, `select exists (select from trapeze.parked where id = $1 and run_after > now() + interval '59 minutes')`, waiting)) // waits until the clock has caught up
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs j join trapeze.done d using (id) where d.state <> 'succeeded'`), 0)
}
