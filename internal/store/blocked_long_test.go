//go:build long

package store_test

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestClaimBehindBlockedJobs(t *testing.T) {
	t.Parallel()
	touchedBehindBlocked(t, 20_000)
}

// flood inserts n due jobs into the default lane with plain SQL. They are older than the lane's low-water mark. Jobs with a subject wait for it.
func (w *world) flood(n int, kind, subject string) {
	w.t.Helper()
	into := `live (id, ready_at, event_no, priority, state, lane, kind, subject) select id, now() - interval '1 hour', 1, 10, 'pending'`
	if subject != "" {
		into = `parked (id, run_after, event_no, priority, why, lane, kind, subject) select id, now() - interval '1 hour', 1, 10, 'subject'`
	}
	w.exec(`with made as (
			insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id)
			select g, $2, 'default', $3, '{}', g
			from generate_series((select coalesce(max(id), 0) + 1 from trapeze.jobs), (select coalesce(max(id), 0) from trapeze.jobs) + $1::int) g
			returning id
		)
		insert into trapeze.`+into+`, 'default', $2, $3 from made`, n, kind, subject)
	w.t.Cleanup(func() {
		w.exec(`truncate trapeze.live, trapeze.jobs, trapeze.done, trapeze.parked, trapeze.job_events, trapeze.subjects`)
	})
}

// touchedBehindBlocked checks how much a claim and an admission read when the first n jobs cannot be claimed. A claim reads jobs of foreign kinds
// until its lane has a low-water mark behind them.
func touchedBehindBlocked(t *testing.T, n int) {
	for name, block := range map[string]func(w *world){
		"jobs of one busy subject":    func(w *world) { w.flood(n, "k", "busy") },
		"jobs of a kind without pods": func(w *world) { w.flood(n, "foreign", "") },
		"jobs of both sorts":          func(w *world) { w.flood(n/2, "k", "busy"); w.flood(n-n/2, "foreign", "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			w.exec(`select setval('trapeze.job_ids', $1)`, 4*n+1)
			w.put(about("busy"))
			w.claimOne(podID) // the subject stays busy from here on
			block(w)
			for _, table := range []string{"jobs", "live", "parked", "subjects", "pods"} {
				w.exec(`vacuum analyze trapeze.` + table)
			}
			conn := plantest.Pinned(t, w.Pool())
			literals := map[string]string{"pod": "'" + podID + "'", "stream": "0", "lanes": "'{default}'", "wants": "'{10}'", "aheads": "'{0}'", "kinds": "'{k}'",
				"short": "'{}'", "isolated": "true", "firsts": "'{1}'", "lasts": "'{2}'", "from_ranks": "'{-100,-10}'", "to_ranks": "'{-11,100}'",
				"from_times": "array['-infinity', now() - interval '1 minute']"}
			statements := map[string]*store.Statement{"claim": store.ClaimSQL, "admit": store.AdmitSQL}
			for name, sql := range statements {
				by := literals
				if name == "admit" {
					by = map[string]string{"kinds": "'{k}'", "subjects": "'{busy}'"}
				}
				found := plantest.Read(t, plantest.Explain(t, conn, name, sql.Text(), "analyze, buffers, format json", sql.InOrder(by)...))
				t.Logf("%s: %+v", name, found)
				if found.Rows > 1000 || found.Buffers > 4000 { // about three pages for each of 201 ranks, counted four times
					t.Errorf("%s behind %d jobs reads %+v", name, n, found)
				}
			}
		})
	}
}
