package store

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// seedEnded puts n ended jobs into the last ten days, the newest first by their numbers: one of every failed, half as many were
// cancelled, and each tenth job is the first of a pipeline of two.
func (w *world) seedEnded(n, every int) {
	w.t.Helper()
	for d := range 10 {
		for _, table := range []string{"done_succeeded", "done_failed", "done_cancelled"} {
			day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -d)
			name := table + "_" + day.Format("20060102")
			if d > 1 {
				w.exec(`create table trapeze.` + name + ` (like trapeze.` + table + ` including all)`)
				w.exec(`alter table trapeze.` + table + ` attach partition trapeze.` + name + ` for values from ('` +
					day.Format(time.RFC3339) + `') to ('` + day.AddDate(0, 0, 1).Format(time.RFC3339) + `')`)
			}
		}
	}
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id, parent_id, step, submitter, created_at)
		select g, 'k' || g / 10 % 3, 'default', '{}', g - case g % 10 when 1 then 1 else 0 end, case g % 10 when 1 then g - 1 end,
			case g % 10 when 1 then 1 else 0 end, case g % 4 when 0 then 'ana' else '' end,
			now() - interval '1 minute' - (g / 2) * (interval '18 days' / $1::int)
		from generate_series(1, $1::int) g`, n)
	w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, finished_at)
		select j.id, s.state, 'ok', 'ok', 1, 3, 1, 1, 0, 10, 'default', j.created_at + interval '20 seconds'
		from trapeze.jobs j cross join lateral (select case when j.id % $1::int = 1 then 'failed' when j.id % (2 * $1::int) = 0 then 'cancelled' else 'succeeded' end as state) s`, every)
	w.exec(`insert into trapeze.pipelines (id, name, created_at) select pipeline_id, 'p' || pipeline_id % 3, created_at from trapeze.jobs where step = 1`)
	w.t.Cleanup(func() { w.exec(`truncate trapeze.jobs, trapeze.done, trapeze.pipelines, trapeze.live, trapeze.parked`) })
}

func TestRareEndedJobsAreListedAsIfAllHistoryWereRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(3000, 20)
	all := func(f Filter) (ids []int64) {
		for {
			page, err := w.Jobs(w.ctx(), f)
			w.is.NoErr(err)
			for _, j := range page.Jobs {
				ids = append(ids, j.ID)
			}
			if f.Cursor = page.Cursor; f.Cursor == "" {
				return ids
			}
		}
	}
	ended := []job.State{job.Failed, job.Cancelled}
	for name, f := range map[string]Filter{
		"failed": {States: ended[:1]}, "cancelled": {States: ended[1:]}, "both": {States: ended}, "kind": {States: ended, Kind: "k1"},
		"lane": {States: ended, Lane: "nowhere"}, "owner": {States: ended, Owner: "ana"}, "pipeline": {States: ended, Pipeline: 20},
		"since": {States: ended, Since: time.Now().Add(-50 * time.Hour)}, "now": {States: ended, Since: time.Now()},
	} {
		f.Limit = 40
		begun := all(f)
		f.States = append(slices.Clone(f.States), job.Pending) // there is none, but it might be anywhere
		if walked := all(f); !slices.Equal(begun, walked) {
			t.Errorf("%s: %v, want %v", name, begun, walked)
		}
		w.is.Equal(len(begun) == 0, name == "lane" || name == "now")
	}
}

func TestRarePipelinesAreListedAsIfAllHistoryWereRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(3000, 20)
	w.exec(`with gone as (delete from trapeze.done where id in (select id from trapeze.jobs where step = 1 and id % 100 = 11) returning id, fence)
		insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject, fence) select id, now(), 3, 0, 'pending', 'default', 'k', '', fence from gone`)
	all := func(f PipelineFilter) (ids []int64) {
		for {
			page, err := w.Pipelines(w.ctx(), f)
			w.is.NoErr(err)
			for _, p := range page.Pipelines {
				ids = append(ids, p.ID)
			}
			if f.Cursor = page.Cursor; f.Cursor == "" {
				return ids
			}
		}
	}
	rare := []job.Status{job.PipelineFailed, job.PipelineCancelled, job.PipelineRunning}
	for name, f := range map[string]PipelineFilter{
		"failed": {Statuses: rare[:1]}, "cancelled": {Statuses: rare[1:2]}, "running": {Statuses: rare[2:]}, "all": {Statuses: rare},
		"name": {Statuses: rare, Name: "p1"}, "since": {Statuses: rare, Since: time.Now().Add(-50 * time.Hour)},
	} {
		f.Limit = 7
		begun := all(f)
		f.Statuses = append(slices.Clone(f.Statuses), job.PipelinePartial) // there is none, but it might be anywhere
		if walked := all(f); !slices.Equal(begun, walked) {
			t.Errorf("%s: %v, want %v", name, begun, walked)
		}
		w.is.Equal(len(begun) == 0, name == "cancelled") // the second steps have odd numbers
	}
}

func TestAListOfRareEndsReadsNoMoreOfALongHistory(t *testing.T) {
	t.Parallel()
	look := func(n int) map[string]touched {
		w := newWorld(t)
		w.seedEnded(n, n/20) // twenty failed in each
		conn := pinned(t, w.pool.Config().ConnString())
		found := map[string]touched{}
		for name, args := range map[string][]string{
			"rare_count":     literals("{failed}", "-infinity", "10001"),
			"ended_jobs":     append(append(literals("{failed}"), "null", "null", "null", "null", "null", "null", "null", "null"), "'50'", "'false'", "null", "null", "null", "null"),
			"rare_pipelines": append(literals("{failed}"), "null", "null", "null", "null", "'50'"),
		} {
			found[name] = read(t, explain(t, conn, name, hot[name], "analyze, buffers, format json", args...))
		}
		return found
	}
	small, large := look(400), look(20_000)
	for name, s := range small {
		t.Logf("%-15s small %+v, large %+v", name, s, large[name])
		if l := large[name]; l.Rows > s.Rows+20 || l.Buffers > 2*s.Buffers {
			t.Errorf("%s touches %+v of a history fifty times as long, %+v of a short one", name, l, s)
		}
	}
}
