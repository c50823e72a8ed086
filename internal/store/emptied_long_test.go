//go:build long

package store_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestSlowStatementTriggersAnalyze(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t)
	w.SlowFrom(time.Hour) // a busy machine must not trigger the analysis
	plantest.FillUnanalyzed(t, w.pool, 20_000)
	through := func() (found []string) {
		conn := plantest.Pinned(t, w.Pool())
		for _, name := range []string{"claim", "admit_keys", "finish"} {
			if plantest.Wide.MatchString(plantest.Explain(t, conn, name, store.Hot[name], "costs off")) {
				found = append(found, name)
			}
		}
		return found
	}
	empty := func() (n int) {
		is.NoErr(w.pool.QueryRow(w.ctx(), `select count(*) from pg_class where relname in ('live', 'parked') and relnamespace = to_regnamespace($1)
			and reltuples < 10000`, w.Schema()).Scan(&n))
		return n
	}
	is.Equal(empty(), 2) // the planner considers both tables empty
	t.Logf("plans that read a whole table for each job: %v", through())

	w.SlowFrom(0)
	_, err := w.NewIDs(w.ctx(), 1) // any slow statement triggers the analysis
	is.NoErr(err)
	is.Equal(empty(), 0)
	is.Equal(through(), nil) // no plan reads a whole table anymore
}
