package handlers_test

import (
	"encoding/csv"
	"errors"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/runner"
)

// reference computes the totals directly from the sample files, with rational numbers and without the database.
func reference(t *testing.T) (flights int64, byUnit map[string]*big.Rat, sum *big.Rat) {
	t.Helper()
	rat := func(s string) *big.Rat {
		r, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q is not a number", s)
		}
		return r
	}
	read := func(name string) [][]string {
		f, err := os.Open("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		all, err := csv.NewReader(f).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		return all[1:]
	}
	factors := read("factors_2024.csv")
	byUnit, sum = map[string]*big.Rat{}, new(big.Rat)
	for _, row := range read("flights.csv") {
		km := new(big.Rat).Mul(rat(row[3]), rat("1.609344"))
		for _, f := range factors {
			if km.Cmp(rat(f[1])) < 0 || f[2] != "" && km.Cmp(rat(f[2])) >= 0 {
				continue
			}
			kg := new(big.Rat).Mul(km, rat(f[3]))
			if byUnit[row[1]] == nil {
				byUnit[row[1]] = new(big.Rat)
			}
			byUnit[row[1]].Add(byUnit[row[1]], kg)
			sum.Add(sum, kg)
			flights++
		}
	}
	return flights, byUnit, sum
}

func equal(exact *big.Rat, digits string) bool {
	r, ok := new(big.Rat).SetString(digits)
	return ok && r.Cmp(exact) == 0
}

func TestExamplePipelineExactTotals(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	flights, byUnit, sum := reference(t)
	b := newBench(t)
	watch(t, b)
	steps := b.pipeline(handlers.Ingest{Year: 2024})
	is.Equal(len(steps), 3) // ingest, factors, totals
	recalculations := b.recalculations(steps[1])
	is.Equal(len(recalculations), len(byUnit)) // one per unit
	for _, s := range append(recalculations, steps...) {
		is.Equal(s.State, runner.StateSucceeded)
		is.Equal(*s.Outcome, runner.OutcomeOK) // no warnings
		is.Equal(s.Fence, int64(1))            // handed off or claimed only once
	}
	is.Equal(status(b, steps[0].ID), "succeeded")
	is.Equal(commits(b), int64(len(byUnit))) // each unit was written once, in its own commit
	ingested := decode[handlers.Ingested](t, steps[0])
	is.Equal(ingested.Rows, int64(20000))
	is.Equal(flights, int64(20000))
	is.Equal(ingested.Units, int64(len(byUnit)))
	is.Equal(ingested.Unnamed, int64(0)) // every airport has a name
	is.True(decode[handlers.SyncedFactors](t, steps[1]).Changed)
	total := decode[handlers.Totalled](t, steps[2])
	is.Equal(total.Units, int64(len(byUnit)))
	is.Equal(total.Flights, flights)
	is.True(equal(sum, string(total.KgCO2e))) // the sum is exact

	units, err := handlers.ReadTotals(t.Context(), b.pool, handlers.Options{}, 2024)
	is.NoErr(err)
	is.Equal(len(units), len(byUnit))
	for _, u := range units {
		is.True(equal(byUnit[u.Unit], u.KgCO2e)) // each unit's total is exact
		is.True(u.Name != nil)
	}
}

func TestExamplePipelineNewFactors(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	flights := file(t, "flights.csv", "flown_at,origin,destination,distance_miles\n"+
		"2024-01-01T00:00:00Z,ATL,JFK,100\n2024-01-02T00:00:00Z,ATL,LAX,2000\n2024-01-03T00:00:00Z,SEA,HNL,2500\n")
	before := decode[handlers.Totalled](t, b.pipeline(handlers.Ingest{File: flights, Year: 2024})[2])
	is.Equal(before.KgCO2e.String(), "1146.6576") // 160.9344 × 0.255 + 3218.688 × 0.156 + 4023.36 × 0.150
	factors := file(t, "factors.csv", "band,min_km,max_km,kg_co2e_per_passenger_km\nall,0,4000,0.1\n")
	steps := b.pipeline(handlers.SyncFactors{File: factors, Year: 2024})
	is.Equal(len(steps), 2)                                      // factors, totals
	is.True(decode[handlers.SyncedFactors](t, steps[0]).Changed) // the factors differ
	units := b.recalculations(steps[0])
	is.Equal(len(units), 2)                            // ATL and SEA
	is.Equal(units[1].Subject, "2024/SEA")             // the subject is the year and the unit
	is.Equal(*units[1].Outcome, runner.OutcomeWarning) // its flight is now outside all bands
	is.Equal(decode[handlers.Recalculated](t, units[1]).NoFactor, int64(1))
	is.Equal(status(b, steps[0].ID), "succeeded") // a warning is not a failure
	is.Equal(steps[1].Subject, "2024")            // the totals of a year run one at a time, so that no older sum replaces a newer one
	after := decode[handlers.Totalled](t, steps[1])
	is.Equal(after.NoFactor, int64(1))
	is.Equal(after.KgCO2e.String(), "337.96224")                       // the flight's old emissions are gone
	is.Equal(after.Units, int64(1))                                    // SEA has no emissions left
	is.Equal(b.count(is, "select count(*) from co2.totals"), int64(1)) // SEA has no total either
	is.Equal(b.count(is, "select count(*) from co2.factors where year = 2024"), int64(1))
}

func TestIngestSameFileAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	flights := file(t, "flights.csv", "flown_at,origin,destination,distance_miles\n"+
		"2024-01-01T00:00:00Z,ATL,JFK,100\n2024-01-02T00:00:00Z,ATL,LAX,2000\n2024-01-03T00:00:00Z,SEA,HNL,2500\n")
	readsTwice(t, b, handlers.Ingest{File: flights, Year: 2024}, 3, 2)
}

// readsTwice runs the pipeline twice for a file with the given numbers of flights and units.
func readsTwice(t *testing.T, b *bench, args handlers.Ingest, flights, units int64) {
	t.Helper()
	is := is.New(t)
	steps, again := b.pipeline(args), b.pipeline(args)
	is.Equal(again[2].Result, steps[2].Result)                            // reading the file again changes nothing
	is.Equal(b.count(is, "select count(*) from co2.activities"), flights) // no activities are duplicated
	is.Equal(b.count(is, "select count(*) from co2.emissions"), flights)  // nor are emissions
	is.Equal(decode[handlers.SyncedFactors](t, again[1]).Changed, false)  // the factors are the same
	is.Equal(b.count(is, "select count(*) from co2.units"), units)        // the units are unchanged
	is.Equal(b.count(is, "select count(*) from co2.totals"), units)       // the totals are unchanged too
}

func TestExamplePipelineSeparateYears(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	flights := file(t, "flights.csv", "flown_at,origin,destination,distance_miles\n2024-01-01T00:00:00Z,ATL,JFK,100\n")
	first := b.pipeline(handlers.Ingest{File: flights, Year: 2023})
	second := b.pipeline(handlers.Ingest{File: flights, Year: 2024})
	is.Equal(first[2].Result, second[2].Result)
	is.Equal(b.count(is, "select count(*) from co2.totals"), int64(2)) // one per year
}

func TestIngestLongerAndShorterFile(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	row := "2024-01-01T00:00:00Z,ATL,JFK,100\n"
	header := "flown_at,origin,destination,distance_miles\n"
	path := file(t, "flights.csv", header+strings.Repeat(row, 2500))
	b.pipeline(handlers.Ingest{File: path, Year: 2024})
	is.Equal(b.count(is, "select count(*) from co2.emissions"), int64(2500))
	is.NoErr(os.WriteFile(path, []byte(header+strings.Repeat(row, 7)), 0o600))
	b.pipeline(handlers.Ingest{File: path, Year: 2024})
	is.Equal(b.count(is, "select count(*) from co2.activities"), int64(7)) // lines that the file no longer contains are gone
	is.Equal(b.count(is, "select count(*) from co2.emissions"), int64(7))  // the emissions of these lines are gone too
	is.Equal(b.count(is, "select sum(flights) from co2.totals"), int64(7)) // the totals no longer include these lines
}

func TestExamplePipelineRemoteWorker(t *testing.T) {
	is := is.New(t)
	r, err := runner.NewRemote(runner.RemoteOptions{})
	is.NoErr(err)
	defer r.Close()
	_ = handlers.Register(r, nil, handlers.Options{})
	is.True(errors.Is(inside.Of(r).Check(), runner.ErrInvalid)) // a remote worker cannot write in the commit that ends a job, so the mistake is reported immediately
}

func TestFencedRunAfterLaterWrite(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	b.stop()
	b = newPod(t, b.pool, handlers.Options{Fenced: true})
	_, err := b.pool.Exec(t.Context(), "insert into co2.fences select id, 1000 from generate_series(1, 1000) id") // fences of later runs
	is.NoErr(err)
	made, err := b.Enqueue(t.Context(), handlers.Ingest{Year: 2024}, runner.MaxAttempts(1))
	is.NoErr(err)
	is.Equal(b.wait(made.ID)[0].State, runner.StateFailed)
	is.Equal(b.count(is, "select count(*) from co2.activities"), int64(0))
}
