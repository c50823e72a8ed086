//go:build long

package store_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestClaimBehindBlockedJobs(t *testing.T) {
	t.Parallel()
	touchedBehindBlocked(t, 20_000)
}

// touchedBehindBlocked checks how much a claim reads when the first n jobs cannot be claimed.
func touchedBehindBlocked(t *testing.T, n int) {
	for name, block := range map[string]func(w *world){
		"jobs of one busy subject":           func(w *world) { w.flood(n, "k", "busy") },
		"jobs of a kind without pods":        func(w *world) { w.flood(n, "foreign", "") },
		"jobs of several kinds without pods": func(w *world) { w.flood(n/2, "foreign", ""); w.flood(n-n/2, "alien", "x") },
		"jobs of both sorts":                 func(w *world) { w.flood(n/2, "k", "busy"); w.flood(n-n/2, "foreign", "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			w.exec(`select setval('trapeze.job_ids', $1)`, 4*n+1)
			w.put(about("busy"))
			w.one(podID) // the subject stays busy from here on
			block(w)
			for _, table := range []string{"jobs", "live", "current_runs", "pods"} {
				w.exec(`vacuum analyze trapeze.` + table)
			}
			w.exec(`insert into trapeze.remote_workers (pod, owner, stream, stream_key) values ($1, 'ann', 1, '')`, podID)
			conn := plantest.Pinned(t, w.Pool())
			var id int64
			var at string
			w.is.NoErr(w.pool.QueryRow(w.ctx(), `select id, ready_at::text from trapeze.live where state = 'pending' order by id offset $1::int limit 1`,
				n/2).Scan(&id, &at))
			literals := map[string]string{"pod": "'" + podID + "'", "lanes": "'{default}'", "wants": "'{10}'", "kinds": "'{k}'", "isolated": "true",
				"since": "array[now() - interval '1 hour']", "after_ranks": "'{-101}'", "after_ready": "'{0001-01-01}'", "after_ids": "'{0}'",
				"reach": "'{1000}'", "above": "'{101}'", "stream": "1"}
			middle := maps.Clone(literals)
			middle["since"], middle["after_ranks"] = "'{0001-01-01}'", "'{-10}'"
			middle["after_ready"], middle["after_ids"] = fmt.Sprintf("'{%q}'", at), fmt.Sprintf("'{%d}'", id)
			first := maps.Clone(literals)
			first["since"] = "'{0001-01-01}'"
			for name, one := range map[string]struct {
				sql *store.Statement
				by  map[string]string
			}{
				"claim":               {store.ClaimSQL, literals},
				"claim_since":         {store.ClaimSinceSQL, literals},
				"claim_from_position": {store.ClaimSinceSQL, middle},
				"worker_claim":        {store.WorkerClaimSQL, literals},
				"worker_claim_since":  {store.WorkerSinceSQL, literals},
				"marks":               {store.MarksSQL, first},
			} {
				plan := plantest.Explain(t, conn, name, one.sql.Text(), "analyze, buffers, format json", one.sql.InOrder(one.by)...)
				found := plantest.Read(t, plan)
				t.Logf("%s: %+v", name, found)
				// Each row is read, filtered and checked for its subject. Rows at the end of the page are read a second time.
				if found.Rows > 5*store.ClaimReach || found.Buffers > 12*store.ClaimReach {
					t.Errorf("%s behind %d jobs reads %+v", name, n, found)
				}
			}
		})
	}
}
