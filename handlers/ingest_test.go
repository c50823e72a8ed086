package handlers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

const header = "flown_at,origin,destination,distance_miles\n"

func TestIngestBadRows(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	path := file(t, "flights.csv", "\ufeffOrigin, destination,flown_at,distance_miles,note\r\n"+ // a different column order, and an extra column
		"ATL,JFK,2024-01-01T00:00:00Z,100,ok\r\n"+
		"ATL,JFK,yesterday,100,\n"+ // 3
		"ATL,JFK,2024-01-01T00:00:00Z,-5,\n"+ // 4
		"\n"+
		"ATL,JFK,2024-01-01T00:00:00Z,\"100,\n"+ // 6: an unclosed quote
		"ATL,JFK\n"+ // 7
		"atlanta,JFK,2024-01-01T00:00:00Z,100,\n"+ // 8
		"ATL,JFK,2024-01-01T00:00:00Z,100,\xff\n"+ // 9
		"ATL,JFK,2024-01-01T00:00:00Z,NaN,\n"+ // 10
		"SEA,JFK,2024-01-01T00:00:00Z,200.5,\"quoted, ok\"\n")
	steps := b.pipeline(handlers.Ingest{File: path, Year: 2024})
	is.Equal(len(steps), 3) // the pipeline continues
	is.Equal(steps[0].State, runner.StateSucceeded)
	is.Equal(*steps[0].Outcome, runner.OutcomeWarning)
	got := decode[struct {
		Rows, Bad int
		BadRows   []struct {
			Line   int
			Reason string
		} `json:"bad_rows"`
	}](t, steps[0])
	is.Equal(got.Rows, 2)
	is.Equal(got.Bad, 7)
	var lines []int
	for _, bad := range got.BadRows {
		lines = append(lines, bad.Line)
		is.True(bad.Reason != "")
	}
	is.Equal(lines, []int{3, 4, 6, 7, 8, 9, 10})                                     // line numbers as shown by an editor
	is.Equal(decode[handlers.Totalled](t, steps[2]).KgCO2e.String(), "123.32000736") // 300.5 miles × 1.609344 × 0.255
	is.Equal(b.count(is, "select count(*) from trapeze.job_event where job = $1 and event = 'csv.bad_row' and level = 'warn'",
		steps[0].ID), int64(7)) // the job's history lists each bad row
}

func TestIngestManyBadRows(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	path := file(t, "flights.csv", header+"2024-01-01T00:00:00Z,ATL,JFK,100\n"+strings.Repeat("2024-01-01T00:00:00Z,ATL,JFK,far\n", 3000))
	steps := b.pipeline(handlers.Ingest{File: path, Year: 2024})
	got := decode[handlers.Ingested](t, steps[0])
	is.Equal(got.Bad, int64(3000))
	is.Equal(len(got.BadRows), 20)
}

func TestIngestUnusableFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, c := range map[string]struct {
		args runner.Args
		want string
	}{
		"missing":            {handlers.Ingest{File: "/nowhere/flights.csv", Year: 2024}, "give the path of a CSV file"},
		"a directory":        {handlers.Ingest{File: t.TempDir(), Year: 2024}, "not a regular file"},
		"empty":              {handlers.Ingest{File: file(t, "a.csv", ""), Year: 2024}, "is empty"},
		"a missing column":   {handlers.Ingest{File: file(t, "a.csv", "flown_at,origin,destination\n"), Year: 2024}, "no column distance_miles"},
		"a binary file":      {handlers.Ingest{File: file(t, "a.csv", "\x7fELF\x00\x01\n"), Year: 2024}, "must name the columns"},
		"one very long line": {handlers.Ingest{File: file(t, "a.csv", header+strings.Repeat("x", 2<<20)), Year: 2024}, "is it a CSV file?"},
		"only bad rows":      {handlers.Ingest{File: file(t, "a.csv", header+"a,b,c,d\n"), Year: 2024}, "none of its 1 rows can be used"},
		"unknown sample":     {handlers.Ingest{File: "sample:x", Year: 2024}, "sample:flights.csv"},
		"no year":            {handlers.Ingest{}, "want 1900 to 2200"},
		"no airports":        {handlers.Ingest{Airports: "/nowhere", Year: 2024}, "give the path of a CSV file"},
		"a bad factor": {handlers.SyncFactors{File: file(t, "f.csv", "band,min_km,max_km,kg_co2e_per_passenger_km\na,0,x,0.1\n"), Year: 2024},
			"line 2: max_km"},
		"two factors for a distance": {handlers.SyncFactors{File: file(t, "f.csv",
			"band,min_km,max_km,kg_co2e_per_passenger_km\na,0,100,0.1\nb,50,,0.1\n"), Year: 2024}, "overlap"},
		"no factors": {handlers.SyncFactors{File: file(t, "f.csv", "band,min_km,max_km,kg_co2e_per_passenger_km\n"), Year: 2024}, "has no factors"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			steps := b.in(t).pipeline(c.args)
			is.Equal(len(steps), 1) // no next step
			is.Equal(steps[0].State, runner.StateFailed)
			is.Equal(steps[0].Fence, int64(1)) // no retry
			is.True(strings.Contains(*steps[0].Error, c.want))
		})
	}
}

func TestIngestFileOutsideFolder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	path := file(t, "flights.csv", header+"2024-01-01T00:00:00Z,ATL,JFK,100\n")
	pool := pgtest.Pool(t)
	o := handlers.Options{Dir: filepath.Dir(path)}
	is.NoErr(handlers.Setup(t.Context(), pool, o))
	b := newPod(t, pool, o)
	is.Equal(len(b.pipeline(handlers.Ingest{File: "flights.csv", Year: 2024})), 3)
	for _, outside := range []string{"../flights.csv", "/etc/passwd"} {
		steps := b.pipeline(handlers.Ingest{File: outside, Year: 2024})
		is.Equal(steps[0].State, runner.StateFailed)
	}
}

func TestIngestReplacedFileSameName(t *testing.T) {
	t.Parallel()
	var rows strings.Builder
	rows.WriteString(header)
	for i := range 1500 {
		fmt.Fprintf(&rows, "2024-01-01T00:00:00Z,ATL,JFK,%d\n", 1000+i)
	}
	for name, c := range map[string]struct {
		text string
		rows int64
	}{
		"shorter":  {header + "2024-01-01T00:00:00Z,SEA,JFK,200\n", 1},
		"as large": {strings.ReplaceAll(rows.String(), "ATL", "SEA"), 1500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			is.NoErr(handlers.Setup(t.Context(), pool, handlers.Options{}))
			path := file(t, "flights.csv", rows.String())
			slow := newPod(t, pool, handlers.Options{BatchPause: time.Minute})
			made, err := slow.Enqueue(t.Context(), handlers.Ingest{File: path, Year: 2024})
			is.NoErr(err)
			pgtest.Wait(t, "one batch is written", func() bool { return slow.count(is, "select count(*) from co2.activities") == 1000 })
			is.NoErr(os.WriteFile(path, []byte(c.text), 0o600))
			slow.stop()
			steps := newPod(t, pool, handlers.Options{}).wait(made.ID)
			is.Equal(decode[handlers.Ingested](t, steps[0]).Rows, c.rows)
			is.Equal(slow.count(is, "select count(*) from co2.activities where origin = 'SEA'"), c.rows)
			is.Equal(slow.count(is, "select count(*) from co2.activities"), c.rows) // no lines of the previous file are left
		})
	}
}
