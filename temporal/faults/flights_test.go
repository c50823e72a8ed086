package faults

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

// flights makes the example slow enough to be killed halfway. Its handlers write under their jobs' fences.
var flights = handlers.Options{BatchRows: 1000, BatchPause: 50 * time.Millisecond, Fenced: true}

func TestFlightTotalsWithWorkersKilled(t *testing.T) {
	is := is.New(t)
	want := fly(t, job.EnginePostgreSQL)
	is.True(len(want) > 100) // the pipeline read the real file
	is.Equal(fly(t, temporal.Name), want)
}

// fly runs the example on an engine, kills one pod during the ingest and another during the fan-out, and returns the totals.
func fly(t *testing.T, engine string) []handlers.UnitTotal {
	t.Helper()
	w := newWorld(t, engine)
	w.start("pod-0", "")
	w.submit(handlers.Ingest{Year: 2024}, runner.Subject("travel/2024"))
	w.wait("the ingest is in the middle of its file", func() bool {
		return pgtest.QueryOne[bool](w, w.pool, `select count(*) between 3000 and 15000 from co2.activities`)
	})
	w.pods[0].kill()
	w.start("pod-1", "")
	w.wait("the fan-out is in the middle", func() bool { return w.endedJobs() > 50 })
	w.pods[1].kill()
	w.start("pod-2", "")
	w.finish()
	totals, err := handlers.ReadTotals(t.Context(), w.pool, flights, 2024)
	w.is.NoErr(err)
	t.Logf("%s: %d airports, %s kg", engine, len(totals), pgtest.QueryOne[string](w, w.pool, `select trim_scale(sum(kg))::text from co2.totals`))
	return totals
}
