//go:build long

package store_test

import (
	"fmt"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestRecoveryBehind300000Jobs(t *testing.T) {
	testRecoveryBehindBacklog(t, 300_000)
}

func TestClaimBehind200000BlockedJobs(t *testing.T) {
	touchedBehindBlocked(t, 200_000)
}

// bounds limits how much data one statement may read, regardless of how many jobs are waiting or finished. The limits are about twice the
// values measured on PostgreSQL 15 with one million pending and one million finished jobs. The measured claim took 50 jobs; each of the
// other statements handled one job.
var bounds = map[string]plantest.Touched{
	"claim":     {Buffers: 3000, Rows: 1200},
	"enqueue":   {Buffers: 120, Rows: 25},
	"finish":    {Buffers: 400, Rows: 50},
	"heartbeat": {Buffers: 280, Rows: 15},
	"promote":   {Buffers: 2200, Rows: 600},
}

func TestHotStatementsInLargeDatabase(t *testing.T) {
	small, large := measure(t, 2_000), measure(t, 1_000_000)
	for name, bound := range bounds {
		s, l := small[name], large[name]
		t.Logf("%-10s small %+v, large %+v", name, s, l)
		if l.Buffers > bound.Buffers || l.Rows > bound.Rows {
			t.Errorf("%s reads %+v, want at most %+v", name, l, bound)
		}
		if l.Buffers > 2*s.Buffers || l.Rows > 2*s.Rows {
			t.Errorf("%s reads %+v, more than twice the %+v of a small database", name, l, s)
		}
	}
}

// measure runs each hot statement once in a database with n pending, n finished and n/10 parked jobs.
func measure(t *testing.T, n int) map[string]plantest.Touched {
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`select setval('trapeze.job_ids', $1)`, 4*n+1)
	w.put(func(n *store.NewJob) { n.Subject, n.Priority = "s", 50 })
	parent := w.claimOne(podID)
	w.seedPending(n)
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id) select g, 'k', 'default', '{}', g from generate_series($1::int + 1, 3 * $1::int) g`, n)
	w.exec(`insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
		select g, 'succeeded', 'ok', 'ok', 1, 3, 1, 1, 0, 10, 'default' from generate_series($1::int + 1, 2 * $1::int) g`, n)
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
		select g, 'retry', now() - interval '1 s' * g, 1, 10, 'default', 'k', '' from generate_series(2 * $1::int + 1, 2 * $1::int + $1::int / 10) g`, n)
	w.exec(`delete from trapeze.jobs where id > 2 * $1::int + $1::int / 10 and id <= 3 * $1::int`, n)
	for _, table := range []string{"jobs", "live", "done", "parked", "subjects", "pods", "job_events"} {
		w.exec(`vacuum analyze trapeze.` + table)
	}
	conn := plantest.Pinned(t, w.Pool())
	id := func() int64 { ids, err := w.NewIDs(w.ctx(), 1); w.is.NoErr(err); return ids[0] }
	found := map[string]plantest.Touched{}
	for name, st := range map[string]*store.Statement{"claim": store.ClaimSQL, "enqueue": store.EnqueueSQL, "heartbeat": store.HeartbeatSQL, "promote": store.PromoteSQL, "finish": store.FinishSQL} {
		child := id()
		by := map[string]string{"pod": "'" + podID + "'", "lanes": "'{default}'", "wants": "'{50}'", "isolated": "true", "lease": "60000", "draining": "false",
			"stream": "0", "renew": "true", "limit": "50", "kinds": "'{k}'", "id": fmt.Sprintf("'{%d}'", parent.ID), "fence": "'{1}'", "state": "'{succeeded}'",
			"outcome": "'{ok}'", "reason": "'{ok}'", "new_id": fmt.Sprintf("'{%d}'", child), "new_kind": "'{k}'", "new_subject": "'{s}'", "new_args": `'{"{}"}'`,
			"new_pipeline_id": fmt.Sprintf("'{%d}'", child), "new_parent_id": "'{null}'", "new_step": "'{0}'", "new_submitter": "'{ann}'", "new_actor": "'{ann}'",
			"new_priority": "'{60}'", "new_delay_ms": "'{0}'", "new_starts": "'{t}'", "new_impaired": "'{f}'", "new_lane": "'{default}'"}
		for range 2 { // the first execution also reads the catalog
			_, err := conn.Exec(t.Context(), "begin")
			w.is.NoErr(err)
			plan := plantest.Explain(t, conn, name, st.Text(), "analyze, buffers, format json", st.InOrder(by)...)
			_, err = conn.Exec(t.Context(), "rollback")
			w.is.NoErr(err)
			found[name] = plantest.Read(t, plan)
		}
	}
	w.exec(`truncate trapeze.live, trapeze.jobs, trapeze.done, trapeze.parked, trapeze.job_events, trapeze.subjects`)
	return found
}
