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

// command runs a PostgreSQL or system program.
func command(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

// restore replaces a server's data with a base backup, as docs/backup-and-restore.md describes, and then recovers all changes up to the end
// of the given transaction.
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

// TestPointInTimeRestore restores the database to a point in time, which discards all later commits. Both a pod that keeps running
// during the restore and a pod started afterwards continue from that point.
func TestPointInTimeRestore(t *testing.T) {
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

	// Changes before the restore point.
	ended := old.submit(`{"kind":"echo","args":{"n":1}}`)
	old.until(ended, job.Succeeded)
	waits := old.submit(`{"kind":"echo","delay":3600}`)
	runs := old.submit(`{"kind":"wait"}`)
	old.until(runs, job.Running)
	keyed := old.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "before").body["id"].(string)
	old.until(keyed, job.Succeeded)
	for name, missed := range map[string]job.Missed{"coalesces": job.MissedCoalesce, "catches-up": job.MissedCatchUp, "skips": job.MissedSkip} {
		_, err := old.Admin("ann").SetSchedule(t.Context(), name, job.ScheduleChange{Expression: new("* * * * *"), Kind: new("echo"), Missed: &missed})
		is.NoErr(err)
	}
	// The restore point is the commit that makes the schedules five minutes overdue. Occurrences that fire after that commit are lost in
	// the restore and fire again.
	var xid string
	var due time.Time
	is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `update trapeze.schedules set planned = true, anchor = now() - interval '6 minutes',
			next_at = date_trunc('minute', now()) - interval '5 minutes'`); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), `select pg_current_xact_id()::text, date_trunc('minute', now())`).Scan(&xid, &due)
	}))

	// Changes after the restore point.
	fired := func() []string {
		return pgtest.Column[string](t, pool, `select concat_ws(' ', schedule, count(*) filter (where outcome = 'fired' and fire_at < $1::timestamptz),
			count(*) filter (where missed > 0)) from trapeze.schedule_occurrences group by schedule order by schedule`, due)
	}
	policies := func() bool {
		// Depending on its policy, a schedule creates five jobs, one job for all occurrences, or no job. The last missed occurrence may
		// fall after the restore point.
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
	for _, id := range pgtest.Column[int64](t, pool, `select id from trapeze.jobs`) {
		before[id] = true
	}
	fence := pgtest.QueryOne[int64](t, pool, `select max(fence) from trapeze.done`)
	history := pgtest.QueryOne[string](t, pool, `select history::text from trapeze.cluster`)
	segment := pgtest.QueryOne[string](t, pool, `select pg_walfile_name(pg_switch_wal())`)
	pgtest.Wait(t, "the WAL is archived", func() bool {
		_, err := os.Stat(filepath.Join(archive, segment))
		return err == nil
	})

	restore(t, server, backup, archive, xid)
	fresh := newHostOn(t, pgtest.Connect(t, server.URL()), api.Options{})

	// Jobs are back in the states that they had at the restore point, and later jobs are gone. A job that was claimed at that point runs
	// again with a higher fence.
	is.Equal(fresh.send("GET", "/jobs/"+late, "").status, http.StatusNotFound)
	fresh.until(ended, job.Succeeded)
	fresh.until(waits, job.Pending)
	pgtest.Wait(t, "the job that ran at the restore point runs again, with a higher fence", func() bool {
		again := fresh.send("GET", "/jobs/"+runs, "").body
		n, err := strconv.ParseInt(fmt.Sprint(again["fence"]), 10, 64)
		if f, ok := again["fence"].(float64); ok {
			n, err = int64(f), nil
		}
		return err == nil && again["state"] == "running" && n > fence
	})
	// The pods have agreed on a new history. No ID is assigned twice.
	pgtest.Wait(t, "both pods know the new history", func() bool {
		var now string
		err := pool.QueryRow(t.Context(), `select history::text from trapeze.cluster`).Scan(&now) // fails on a connection opened before the restore
		return err == nil && now != history && sum(t, old, "trapeze_history_changes_total") == 1
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
	sql := pgtest.QueryOne[int64](t, pool, `select id from trapeze.enqueue('echo')`)
	is.True(!before[sql])
	// An idempotency key from before the restore point still returns its job. A key that the restore discarded creates a new job.
	is.Equal(fresh.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "before").body["id"], keyed)
	is.True(fresh.send("POST", "/jobs", `{"kind":"echo"}`, "Idempotency-Key", "after").body["id"] != lost)
	// A stream that resumes from a cursor issued before the restore is reset.
	for _, h := range []*host{old, fresh} {
		s := h.watch("/events/stream", "Last-Event-ID", cursor)
		is.Equal(s.must(t).event, "reset")
		is.Equal(s.must(t).event, "snapshot")
		s.leave()
	}
	// The schedules fire again for the occurrences due after the restore point, according to their policies.
	pgtest.Wait(t, "the schedules have fired again by their policies", policies)
	fresh.send("POST", "/jobs/"+runs+"/cancel", "")
	fresh.until(runs, job.Cancelled)
	fresh.send("POST", "/jobs/"+waits+"/cancel", "")
	podtest.CheckHistory(t, pool, fresh.Runner)
}
