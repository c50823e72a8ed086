package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// Ingest reads a file of flights into activities and their departure airports into units, and then syncs the factors. Reading a file again
// replaces its previous contents for the same year.
//
// Ingest skips a row that cannot be used, reports it with its line and reason, and ends with a warning. If the file cannot be read, lacks a
// column, or contains only unusable rows, the job fails without a retry. If the file has no rows, the job ends with a warning.
type Ingest struct {
	File     string `json:"file,omitempty"`     // has the columns of [SampleFlights], which is the default
	Airports string `json:"airports,omitempty"` // lists the names of airports; the default is [SampleAirports]
	Factors  string `json:"factors,omitempty"`  // passed on to [SyncFactors]
	Year     int    `json:"year"`               // the year of the flights and of the factors
}

// Kind implements runner.Args.
func (Ingest) Kind() string { return "csv_ingest" }

// Ingested is the result of an [Ingest].
type Ingested struct {
	Rows    int64     `json:"rows"`     // flights read
	Units   int64     `json:"units"`    // departure airports in this file
	Bad     int64     `json:"bad"`      // number of skipped rows
	BadRows []*badRow `json:"bad_rows"` // the first skipped rows
	Unnamed int64     `json:"unnamed"`  // departure airports that are missing from the list of airports
}

// firstBad is the number of bad rows that are reported individually. All bad rows are counted.
const firstBad = 20

// ingestPoint is the checkpoint of an ingest, committed with each batch. The next run continues after Line.
type ingestPoint struct {
	Size    int64     `json:"size"`    // file size; if it or Changed differs, the file has changed and is read from the start
	Changed time.Time `json:"changed"` // modification time of the file
	Line    int64     `json:"line"`
	Rows    int64     `json:"rows"`
	Bad     int64     `json:"bad"`
	BadRows []*badRow `json:"bad_rows,omitempty"`
}

func (p *pipeline) ingest(ctx context.Context, j *runner.Job[Ingest]) (*runner.Outcome, error) {
	a := j.Args
	a.File = cmp.Or(a.File, SampleFlights)
	if err := checkYear(a.Year); err != nil {
		return nil, err
	}
	flights, err := p.openTable(a.File, "flown_at", "origin", "destination", "distance_miles")
	if err != nil {
		return nil, err
	}
	defer flights.Close()
	at, err := p.readFlights(ctx, j, a, flights)
	if err != nil {
		return nil, err
	}
	if at.Rows == 0 && at.Bad > 0 {
		return nil, runner.Permanent(fmt.Errorf("%s: none of its %d rows can be used; the first error: %w", a.File, at.Bad, at.BadRows[0]))
	}
	if err := p.nameUnits(ctx, j, cmp.Or(a.Airports, SampleAirports)); err != nil {
		return nil, err
	}
	result := Ingested{Rows: at.Rows, Bad: at.Bad, BadRows: at.BadRows}
	err = p.pool.QueryRow(ctx, p.in(countUnitsSQL), a.Year, a.File, at.Line).Scan(&result.Units, &result.Unnamed)
	if err != nil {
		return nil, fmt.Errorf("count units: %w", err)
	}
	outcome := runner.Then(SyncFactors{File: a.Factors, Year: a.Year}).Result(result)
	if result.Bad > 0 || result.Rows == 0 {
		outcome.Warning()
	}
	return p.finish(ctx, j, outcome, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, p.in(dropRestSQL), a.Year, a.File, at.Line)
		return err
	})
}

// readFlights reads the flights in batches, from the latest checkpoint to the end.
func (p *pipeline) readFlights(ctx context.Context, j *runner.Job[Ingest], a Ingest, t *table) (at ingestPoint, err error) {
	found, err := j.LastCheckpoint(&at)
	if err != nil || !found || at.Size != t.size || !at.Changed.Equal(t.changed) {
		at = ingestPoint{Size: t.size, Changed: t.changed, Line: t.line}
	}
	t.skip(at.Line)
	total, err := p.countLines(a.File)
	if err != nil {
		return at, err
	}
	for {
		if ctx.Err() != nil {
			return at, context.Cause(ctx)
		}
		b, done, err := t.readBatch(p.BatchRows)
		if err != nil {
			return at, err
		}
		if t.line == at.Line {
			break // no rows are left after the previous batch
		}
		next := at
		next.Line, next.Rows, next.Bad = t.line, at.Rows+int64(len(b.lines)), at.Bad+int64(len(b.bad))
		fresh := b.bad[:min(len(b.bad), firstBad-len(at.BadRows))]
		next.BadRows = append(at.BadRows[:len(at.BadRows):len(at.BadRows)], fresh...)
		err = p.write(ctx, j, func(tx pgx.Tx) error { return p.writeFlights(ctx, tx, a, at.Line, t.line, b) }, next)
		if err != nil {
			return at, fmt.Errorf("write lines %d to %d: %w", at.Line+1, t.line, err)
		}
		at = next
		for _, bad := range fresh {
			if err := j.Emit(ctx, "csv.bad_row", "warn", bad.Error(), bad); err != nil {
				return at, err
			}
		}
		j.Progress(t.line-1, total-1) // the header does not count
		if done {
			break
		}
		if err := p.pause(ctx); err != nil {
			return at, err
		}
	}
	return at, nil
}

// flightBatch holds rows as columns, ready to be sent to the database.
type flightBatch struct {
	lines                        []int64
	flown                        []time.Time
	origins, destinations, miles []string
	bad                          []*badRow
}

// readBatch reads up to n rows. done reports whether the end of the file was reached.
func (t *table) readBatch(n int) (b flightBatch, done bool, err error) {
	for len(b.lines)+len(b.bad) < n {
		flown, err := time.Time{}, t.next()
		if err == nil {
			flown, err = t.flight()
		}
		bad, isBad := errors.AsType[*badRow](err)
		switch {
		case errors.Is(err, io.EOF):
			return b, true, nil
		case isBad:
			b.bad = append(b.bad, bad)
		case err != nil:
			return b, false, err
		default:
			b.lines, b.flown = append(b.lines, t.line), append(b.flown, flown)
			b.origins, b.destinations = append(b.origins, t.get("origin")), append(b.destinations, t.get("destination"))
			b.miles = append(b.miles, t.get("distance_miles"))
		}
	}
	return b, false, nil
}

var (
	airportCode = regexp.MustCompile(`^[A-Z0-9]{3,4}$`)
	decimal     = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)
	degrees     = regexp.MustCompile(`^-?[0-9]{1,3}(\.[0-9]{1,12})?$`)
)

// flight validates the current row and returns its departure time.
func (t *table) flight() (time.Time, error) {
	flown, err := time.Parse(time.RFC3339, t.get("flown_at"))
	if err != nil {
		return flown, t.bad("flown_at %.40q: want a time such as 2001-01-31T23:59:00Z", t.get("flown_at"))
	}
	for _, column := range []string{"origin", "destination"} {
		if !airportCode.MatchString(t.get(column)) {
			return flown, t.bad("%s %.40q: want an airport code such as ATL", column, t.get(column))
		}
	}
	if !decimal.MatchString(t.get("distance_miles")) {
		return flown, t.bad("distance_miles %.40q: want a number such as 1750", t.get("distance_miles"))
	}
	return flown, nil
}

// A batch replaces the stored rows for its lines. Rereading the same lines therefore changes nothing, and no lines from an older file
// remain.
const (
	clearLinesSQL = `delete from co2.activities where year = $1 and source = $2 and line > $3 and line <= $4`

	// The codes are sorted so that two batches never deadlock on each other's units.
	insertUnitsSQL = `
insert into co2.units (code) select distinct code from unnest($1::text[]) code order by code on conflict do nothing`

	insertActivitiesSQL = `
insert into co2.activities (year, source, line, flown_at, origin, destination, distance_miles)
select $1, $2, line, flown_at, origin, destination, miles::numeric
from unnest($3::bigint[], $4::timestamptz[], $5::text[], $6::text[], $7::text[]) as f (line, flown_at, origin, destination, miles)`
)

// writeFlights replaces the lines in (after, upTo].
func (p *pipeline) writeFlights(ctx context.Context, tx pgx.Tx, a Ingest, after, upTo int64, b flightBatch) error {
	var batch pgx.Batch
	batch.Queue(p.in(clearLinesSQL), a.Year, a.File, after, upTo)
	batch.Queue(p.in(insertUnitsSQL), b.origins)
	batch.Queue(p.in(insertActivitiesSQL), a.Year, a.File, b.lines, b.flown, b.origins, b.destinations, b.miles)
	return tx.SendBatch(ctx, &batch).Close()
}

// dropRestSQL deletes the lines beyond the end of the file, which remain from an earlier, longer version.
const dropRestSQL = `delete from co2.activities where year = $1 and source = $2 and line > $3`

// countUnitsSQL counts the departure airports in a file, and those without a name.
const countUnitsSQL = `
select count(*), count(*) filter (where u.name is null)
from co2.units u
where u.code in (select origin from co2.activities where year = $1 and source = $2 and line <= $3)`

// nameUnitsSQL updates the units whose data differ from those in a list of airports.
const nameUnitsSQL = `
update co2.units u set name = a.name, city = a.city, state = a.state, latitude = a.latitude::numeric, longitude = a.longitude::numeric
from (
	select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
		as a (code, name, city, state, latitude, longitude)
) a
where u.code = a.code and (u.name, u.city, u.state, u.latitude, u.longitude)
	is distinct from (a.name, a.city, a.state, a.latitude::numeric, a.longitude::numeric)`

const airportsAtOnce = 1000

// nameUnits reads a list of airports and names the existing units. It needs no checkpoint because writing a batch again is harmless. It
// skips invalid rows because names are optional.
func (p *pipeline) nameUnits(ctx context.Context, j *runner.Job[Ingest], file string) error {
	t, err := p.openTable(file, "iata", "name", "city", "state", "latitude", "longitude")
	if err != nil {
		return err
	}
	defer t.Close()
	for done := false; !done; {
		columns := make([][]string, 6)
		for rows := 0; rows < airportsAtOnce && !done; rows++ {
			err := t.next()
			if _, isBad := errors.AsType[*badRow](err); isBad {
				continue
			}
			if done = errors.Is(err, io.EOF); done {
				break
			}
			if err != nil {
				return err
			}
			if !degrees.MatchString(t.get("latitude")) || !degrees.MatchString(t.get("longitude")) {
				continue
			}
			for i, column := range []string{"iata", "name", "city", "state", "latitude", "longitude"} {
				columns[i] = append(columns[i], t.get(column))
			}
		}
		err := p.write(ctx, j, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, p.in(nameUnitsSQL), columns[0], columns[1], columns[2], columns[3], columns[4], columns[5])
			return err
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}
