package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/upkeep"
)

// endedAt inserts jobs that succeeded at the given times, with a partition for each UTC day.
func (w *world) endedAt(moments ...time.Time) []int64 {
	w.t.Helper()
	ids, err := w.NewIDs(w.ctx(), len(moments))
	w.is.NoErr(err)
	for i, at := range moments {
		day := at.UTC()
		name := "done_succeeded" + day.Format("_20060102")
		if w.count(`select count(*) from pg_class where relname = $1`, name) == 0 {
			w.exec(fmt.Sprintf(`create table trapeze.%s (like trapeze.done_succeeded including all)`, name))
			w.exec(fmt.Sprintf(`alter table trapeze.done_succeeded attach partition trapeze.%s for values from ('%s 00:00:00+00') to ('%s 00:00:00+00')`,
				name, day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
		}
		w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id, xid) values ($1, 'k', 'default', '{}', $1, pg_current_xact_id())`, ids[i])
		w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, finished_at)
			values ($1, 'succeeded', 'ok', 'ok', 1, 1, 1, 1, 0, 10, 'default', $2)`, ids[i], at)
	}
	return ids
}

// UTC days have 24 hours regardless of the session's time zone. In Zurich, one of these days has 23 hours and the other has 25.
func TestRetentionAcrossDaylightSavingChanges(t *testing.T) {
	t.Parallel()
	for name, day := range map[string]time.Time{
		"forward": time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC),
		"back":    time.Date(2025, 10, 26, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`alter database ` + w.pool.Config().ConnConfig.Database + ` set timezone = 'Europe/Zurich'`)
			w.pool.Reset()
			w.Pool().Reset()
			ids := w.endedAt(day, day.Add(24*time.Hour-time.Microsecond), day.Add(24*time.Hour), day.Add(24*time.Hour+30*time.Minute))
			keep := time.Since(day.Add(24*time.Hour)) - 6*time.Hour // the retention of this day has expired, but not that of the next
			n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", keep, unpaced)
			w.is.NoErr(err)
			w.is.Equal(n, 2)
			w.is.Equal(w.count(`select count(*) from trapeze.jobs where id = any($1)`, ids[:2]), 0) // all jobs of the day are deleted, including one in its last instant
			w.is.Equal(w.count(`select count(*) from trapeze.jobs where id = any($1)`, ids[2:]), 2) // no job of the next day is deleted
			w.is.Equal(w.count(`select count(*) from trapeze.done`), 2)
		})
	}
}
