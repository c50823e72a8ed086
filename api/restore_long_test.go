//go:build long

package api_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
)

// command runs one of PostgreSQL's programs, or of the system's.
func command(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

// restore puts a base backup in the place of a server's data, as docs/backup-and-restore.md describes it, and recovers to the end of a transaction.
func restore(t *testing.T, server *pgtest.Node, backup, archive, xid string) {
	t.Helper()
	is := is.New(t)
	data := filepath.Join(server.Dir(), "pgdata")
	server.Halt(t)
	is.NoErr(os.Rename(data, data+".lost"))
	command(t, "cp", "-a", backup, data)
	is.NoErr(os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600))
	settings, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	is.NoErr(err)
	_, err = fmt.Fprintf(settings, "restore_command = 'cp %s/%%f %%p'\nrecovery_target_xid = '%s'\nrecovery_target_action = 'promote'\n", archive, xid)
	is.NoErr(err)
	is.NoErr(settings.Close())
	command(t, "chown", "-R", "--reference="+data+".lost", data)
	command(t, "chmod", "700", data)
	server.Start(t)
	pgtest.Wait(t, "the server has reached the point and accepts writes", func() bool { return !server.InRecovery(t) })
}

// TestARestoreToAPointInTime loses the commits after a point. A pod that runs through the restore and one that starts after it go on from the point.
func TestARestoreToAPointInTime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	archive, err := os.MkdirTemp("", "archive")
	is.NoErr(err)
	t.Cleanup(func() { _ = os.RemoveAll(archive) })
	is.NoErr(os.Chmod(archive, 0o777)) // #nosec G302 -- the server runs as another user
	server := pgtest.Primary(t, "archive_mode", "on", "archive_command", "cp %p "+archive+"/%f")
	pgtest.Migrate(t, server.URL())
	pool := pgtest.Connect(t, server.URL())
	old := newHostOn(t, pool, api.Options{})
	backup := filepath.Join(t.TempDir(), "base")
	command(t, filepath.Join(server.BinDir(), "pg_basebackup"), "-D", backup, "-c", "fast", "-d", server.URL())

	// Before the point.
	ended := old.submit(`{"kind":"echo","args":{"n":1}}`)
	old.until(ended, job.Succeeded)
	waits := old.submit(`{"kind":"echo","delay":3600}`)
	runs := old.submit(`{"kind":"wait"}`)
	old.until(runs, job.Running)
	keyed := old.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "before").body["id"].(string)
	old.until(keyed, job.Succeeded)
	for name, missed := range map[string]job.Missed{"coalesces": job.MissedCoalesce, "catches-up": job.MissedCatchUp, "skips": job.MissedSkip} {
		_, err := old.Admin().SetSchedule(t.Context(), name, job.ScheduleChange{Expression: new("* * * * *"), Kind: new("echo"), Missed: &missed}, "ann")
		is.NoErr(err)
	}
	// The point is the commit of the transaction after which the schedules have been due for five minutes: their fires are lost and come again.
	var xid string
	var due time.Time
	is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `update trapeze.schedules set planned = true, anchor = now() - interval '6 minutes',
			next_at = date_trunc('minute', now()) - interval '5 minutes'`); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), `select pg_current_xact_id()::text, date_trunc('minute', now())`).Scan(&xid, &due)
	}))

	// After the point.
	fired := func() []string {
		return podtest.Column[string](t, pool, `select concat_ws(' ', schedule, count(*) filter (where outcome = 'fired' and fire_at < $1::timestamptz),
			count(*) filter (where missed > 0)) from trapeze.schedule_fires group by schedule order by schedule`, due)
	}
	policies := func() bool {
		// Five jobs; one job for all; none. The latest that counts as missed may be one of the minutes after the point.
		list := strings.Join(fired(), ", ")
		return list == "catches-up 5 0, coalesces 1 1, skips 0 1" || list == "catches-up 5 0, coalesces 0 1, skips 0 1"
	}
	pgtest.Wait(t, "the schedules have fired by their policies", policies)
	is.Equal(old.send("POST", "/jobs/"+waits+"/cancel", "").status, http.StatusOK)
	old.send("POST", "/jobs/"+runs+"/cancel", "")
	old.until(runs, job.Cancelled)
	late := old.submit(`{"kind":"echo"}`)
	old.until(late, job.Succeeded)
	lost := old.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "after").body["id"].(string)
	s := old.watch("/events/stream")
	cursor := s.must(t).id
	s.leave()
	before := map[int64]bool{}
	for _, id := range podtest.Column[int64](t, pool, `select id from trapeze.jobs`) {
		before[id] = true
	}
	fence := podtest.One[int64](t, pool, `select max(fence) from trapeze.done`)
	history := podtest.One[string](t, pool, `select history::text from trapeze.cluster`)
	segment := podtest.One[string](t, pool, `select pg_walfile_name(pg_switch_wal())`)
	pgtest.Wait(t, "the WAL is archived", func() bool {
		_, err := os.Stat(filepath.Join(archive, segment))
		return err == nil
	})

	restore(t, server, backup, archive, xid)
	fresh := newHostOn(t, pgtest.Connect(t, server.URL()), api.Options{})

	// Jobs are as they were at the point. What came later is gone; a claim of then runs again, with a higher fence.
	is.Equal(fresh.send("GET", "/jobs/"+late, "").status, http.StatusNotFound)
	fresh.until(ended, job.Succeeded)
	fresh.until(waits, job.Pending)
	pgtest.Wait(t, "the job that ran at the point runs again, with a higher fence than any before", func() bool {
		again := fresh.send("GET", "/jobs/"+runs, "").body
		n, err := strconv.ParseInt(fmt.Sprint(again["fence"]), 10, 64)
		if f, ok := again["fence"].(float64); ok {
			n, err = int64(f), nil
		}
		return err == nil && again["state"] == "running" && n > fence
	})
	// The pods have agreed on another history, and no id is handed out twice.
	pgtest.Wait(t, "both pods know the new history", func() bool {
		return podtest.One[string](t, pool, `select history::text from trapeze.cluster`) != history && sum(t, old, "trapeze_history_changes_total") == 1
	})
	for range 20 {
		for _, h := range []*host{old, fresh} {
			id := h.submit(`{"kind":"echo"}`)
			h.until(id, job.Succeeded)
			n, err := strconv.ParseInt(id, 10, 64)
			is.NoErr(err)
			is.True(!before[n])
			before[n] = true
		}
	}
	sql := podtest.One[int64](t, pool, `select id from trapeze.enqueue('echo')`)
	is.True(!before[sql])
	// A key from before the point answers with its job; one that was lost makes a new job.
	is.Equal(fresh.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "before").body["id"], keyed)
	is.True(fresh.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "after").body["id"] != lost)
	// A stream that goes on from before the restore begins anew.
	for _, h := range []*host{old, fresh} {
		s := h.watch("/events/stream", "Last-Event-ID", cursor)
		is.Equal(s.must(t).event, "reset")
		is.Equal(s.must(t).event, "snapshot")
		s.leave()
	}
	// Schedules fire for the time after the point as their policies say, once.
	pgtest.Wait(t, "the schedules have fired again by their policies", policies)
	fresh.send("POST", "/jobs/"+runs+"/cancel", "")
	fresh.until(runs, job.Cancelled)
	fresh.send("POST", "/jobs/"+waits+"/cancel", "")
	podtest.CheckHistory(t, pool, fresh.Runner)
}
