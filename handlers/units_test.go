package handlers_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/runner"
)

// watch makes the database record every commit that writes emissions, including commits that change no rows.
func watch(t *testing.T, b *bench) {
	t.Helper()
	_, err := b.pool.Exec(t.Context(), `
		create table counted (xid xid8 not null);
		create function count_commit() returns trigger language plpgsql as $$
			begin insert into counted values (pg_current_xact_id()); return null; end $$;
		create trigger counted after insert on co2.emissions for each statement execute function count_commit()`)
	if err != nil {
		t.Fatal(err)
	}
}

// commits returns the number of recorded commits.
func commits(b *bench) (n int64) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), "select count(distinct xid) from counted").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// The distances for BOS are in meters. All others are correct.
func TestExamplePipelineBadUnit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	good := header + "2024-01-01T00:00:00Z,ATL,JFK,100\n2024-01-02T00:00:00Z,BOS,LAX,2000\n"
	b.pipeline(handlers.Ingest{File: file(t, "flights.csv", good), Year: 2024})
	is.Equal(b.count(is, "select count(*) from co2.totals"), int64(2)) // so far, BOS has a total

	bad := good + "2024-01-02T00:00:00Z,BOS,LAX,3218688\n2024-01-02T00:00:00Z,SEA,JFK,200.5\n"
	steps := b.pipeline(handlers.Ingest{File: file(t, "flights.csv", bad), Year: 2025})
	is.Equal(len(steps), 3)                            // the join has run
	is.Equal(status(b, steps[0].ID), "partial")        // the pipeline reports the failed unit
	is.Equal(steps[1].State, runner.StateSucceeded)    // the other units are correct
	is.Equal(*steps[2].Outcome, runner.OutcomeWarning) // an operator should check the result
	total := decode[handlers.Totalled](t, steps[2])
	is.Equal(total.Bad, int64(1))
	is.Equal(total.BadUnits[0].Unit, "BOS") // the failed unit is listed
	is.Equal(total.BadUnits[0].Reason, "a distance of more than 20038 km, half way round the Earth, in 1 of 2 flights: are they in miles?")
	is.Equal(total.Units, int64(2))                 // only the remaining units count
	is.Equal(total.KgCO2e.String(), "123.32000736") // 300.5 miles × 1.609344 × 0.255
	failed := b.recalculations(steps[1])[1]
	is.Equal(failed.State, runner.StateFailed)
	is.Equal(failed.Fence, int64(1)) // no retry
	units, err := handlers.ReadTotals(t.Context(), b.pool, handlers.Options{}, 2025)
	is.NoErr(err)
	is.Equal(len(units), 2) // the failed unit has no total

	path := file(t, "mended.csv", good)
	_, err = b.pool.Exec(t.Context(), "delete from co2.activities where year = 2025")
	is.NoErr(err)
	mended := b.pipeline(handlers.Ingest{File: path, Year: 2025})
	is.Equal(status(b, mended[0].ID), "succeeded")
	is.Equal(len(b.recalculations(mended[1])), 3) // SEA no longer has any flights, so it loses its emissions
	is.Equal(decode[handlers.Totalled](t, mended[2]).KgCO2e.String(), "543.1536")
}

func TestExamplePipelineUnitTurnedBad(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	path := func(miles string) string {
		return file(t, "flights.csv", header+"2024-01-01T00:00:00Z,ATL,JFK,100\n2024-01-02T00:00:00Z,BOS,LAX,"+miles+"\n")
	}
	b.pipeline(handlers.Ingest{File: path("2000"), Year: 2024})
	_, err := b.pool.Exec(t.Context(), "update co2.activities set distance_miles = 3218688 where origin = 'BOS'")
	is.NoErr(err)
	steps := b.pipeline(handlers.SyncFactors{Year: 2024})
	total := decode[handlers.Totalled](t, steps[1])
	is.Equal(total.Units, int64(1)) // old emissions are not presented as current ones
	is.Equal(b.count(is, "select count(*) from co2.totals where unit = 'BOS'"), int64(0))
}

func TestExamplePipelineAllUnitsBad(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	steps := b.pipeline(handlers.Ingest{File: file(t, "flights.csv", header+"2024-01-02T00:00:00Z,BOS,LAX,3218688\n"), Year: 2024})
	is.Equal(len(steps), 2) // no join
	is.Equal(steps[1].State, runner.StateFailed)
	is.Equal(status(b, steps[0].ID), "failed")
	is.Equal(b.count(is, "select count(*) from co2.totals"), int64(0))
}

func TestExamplePipelineWithoutFlights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	steps := b.pipeline(handlers.Ingest{File: file(t, "flights.csv", header), Year: 2024})
	is.Equal(len(steps), 3) // after a fan-out without children, the join runs
	is.Equal(decode[handlers.Totalled](t, steps[2]).Units, int64(0))
	is.Equal(status(b, steps[0].ID), "succeeded")
}
