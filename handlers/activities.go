package handlers

import (
	"context"
	"errors"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

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
