package store_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

// The statements that choose the next job of a subject read no more if many other jobs of the subject may not run.
func TestAdmissionAmongClosedLanes(t *testing.T) {
	t.Parallel()
	const n = 40_000
	for name, flood := range map[string]string{
		"jobs in a closed lane": `select g, now() - interval '1 hour', 1, 20, 'subject', 'side', 'k', 's'`,
		"scheduled jobs":        `select g, now() + interval '1 hour', 1, 20, 'scheduled', 'side', 'k', 's'`,
		// With these rows, the planner does not expect that few jobs are due.
		"scheduled jobs and due ones": `select g, now() + (g % 2 - 0.5) * interval '1 hour', 1, 20, 'scheduled', 'side', 'k', case g % 2 when 1 then 's' else 'other' end`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).side()
			podID := w.pod("a")
			w.exec(`update trapeze.lanes set drained = true where name = 'side'`)
			w.put(about("s"), about("free"))
			next := w.put(about("s"))[0]
			c := w.claimOne(podID)
			w.is.Equal(c.Subject, "s")
			w.exec(`insert into trapeze.parked (id, run_after, event_no, priority, why, lane, kind, subject) `+flood+` from generate_series(1000001, 1000000 + $1::int) g`, n)
			t.Cleanup(func() {
				w.exec(`truncate trapeze.parked, trapeze.live, trapeze.jobs, trapeze.job_events, trapeze.done, trapeze.subjects`)
			})
			w.exec(`vacuum analyze trapeze.parked`)
			ids, nulls := "array["+itoa(c.ID)+"]::bigint[]", "array[null::text]"
			by := map[string]string{
				"pod": "'" + podID + "'", "kinds": "'{k}'", "subjects": "'{s}'", "ids": ids, "fences": "array[" + itoa(c.Fence) + "]::bigint[]", "states": "'{succeeded}'",
				"outcomes": "'{ok}'", "reasons": "'{ok}'", "results": nulls, "errors": nulls,
			}
			pending, free := `update trapeze.live set state = 'pending', pod = null where subject = 's'`, `delete from trapeze.subjects`
			for name, one := range map[string]struct {
				sql     *store.Statement
				before  string
				buffers int
			}{
				"finish": {store.EndSQL, "", 450}, "admit": {store.AdmitSQL, free, 350}, "yield": {store.YieldSQL, pending, 150},
			} {
				conn := plantest.Pinned(t, w.Pool())
				_, err := conn.Exec(t.Context(), "begin; "+w.In(one.before))
				w.is.NoErr(err)
				plan := plantest.Explain(t, conn, name, one.sql.Text(), "analyze, buffers, format json", one.sql.InOrder(by)...)
				found := plantest.Read(t, plan)
				t.Logf("%s: %+v %s", name, found, took.FindAllString(plan, -1))
				if found.Rows > 200 || found.Buffers > one.buffers {
					t.Errorf("%s among %d parked jobs reads %+v", name, n, found)
				}
				_, err = conn.Exec(t.Context(), "rollback")
				w.is.NoErr(err)
			}
			ended, err := w.Finish(w.ctx(), podID, []store.Ending{ending(c)})
			w.is.NoErr(err)
			w.is.True(ended[c.ID].Heir != nil)
			w.stands(next, "pending")
		})
	}
}

var took = regexp.MustCompile(`"(Planning|Execution) Time": [0-9.]+`)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
