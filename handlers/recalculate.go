package handlers

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// Recalculate computes the emissions of one unit's flights in a year with that year's factors. A [SyncFactors] fans out into many of these
// jobs. Flights whose distance is outside all bands are assigned no emissions; they are counted, and the outcome is then a warning.
//
// A flight with an impossibly long distance fails the job without a retry, and the unit keeps its earlier emissions. The distance must be
// corrupt or in a different unit of length, and would distort the total. Other units' recalculations continue.
type Recalculate struct {
	Year int    `json:"year"`
	Unit string `json:"unit"`
}

// Kind implements runner.Args.
func (Recalculate) Kind() string { return "emission_recalc" }

// Recalculated is the result of a [Recalculate].
type Recalculated struct {
	Flights  int64 `json:"flights"`
	NoFactor int64 `json:"no_factor"` // flights whose distance is outside all bands
}

// subjectOf returns the subject of a unit's recalculation. Two pipelines for the same year recalculate a unit one after the other;
// different years and units are recalculated concurrently.
func subjectOf(year int, unit string) string { return fmt.Sprintf("%d/%s", year, unit) }

// unitIn returns the unit in a subject with the given year.
func unitIn(year int, subject string) string { return strings.TrimPrefix(subject, subjectOf(year, "")) }

// unitsSQL lists a year's units: those with flights, and those with only old emissions. Plan: activities_of_unit and emissions_pkey,
// reading only the year's part of each.
const unitsSQL = `
select origin from co2.activities where year = $1 union select unit from co2.emissions where year = $1 order by 1`

// ratedSQL computes the band and emissions of each flight of a unit. A statute mile is exactly 1.609344 km, by the international agreement
// of 1959. Plan: activities_of_unit.
const ratedSQL = `
with rated as materialized (
	select a.source, a.line, f.band, a.distance_miles * 1.609344 as km, a.distance_miles * 1.609344 * f.kg_per_km as kg
	from co2.activities a left join co2.factors f on f.year = a.year
		and a.distance_miles * 1.609344 >= f.min_km and (f.max_km is null or a.distance_miles * 1.609344 < f.max_km)
	where a.year = $1 and a.origin = $2
)`

// farthestKm is half the length of the Earth's equator, rounded up. No two places are farther apart.
const farthestKm = 20038

const weighUnitSQL = ratedSQL + `
select count(*), count(*) filter (where band is null), count(*) filter (where km > $3) from rated`

// recalcSQL replaces a unit's emissions with those of its flights, and writes only rows that differ. No two units share a row. Plan: the
// plan of ratedSQL, and emissions by primary key. A hashed subplan finds the rows to delete. With an anti-join, whose size the planner
// cannot estimate, each of 846 flights was compared with every other: 0.8 s instead of 0.005 s, on two busy cores.
const recalcSQL = ratedSQL + `, removed as (
	delete from co2.emissions e where e.year = $1 and e.unit = $2
		and (e.source, e.line) not in (select r.source, r.line from rated r where r.band is not null)
), written as (
	insert into co2.emissions as e (year, unit, source, line, band, km, kg)
	select $1, $2, source, line, band, km, kg from rated where band is not null
	on conflict (year, unit, source, line) do update set band = excluded.band, km = excluded.km, kg = excluded.kg
	where (e.band, e.km, e.kg) is distinct from (excluded.band, excluded.km, excluded.kg)
)
select count(*), count(*) filter (where band is null) from rated`

func (p *pipeline) recalculate(ctx context.Context, j *runner.Job[Recalculate]) (*runner.Outcome, error) {
	year, unit := j.Args.Year, j.Args.Unit
	if err := checkYear(year); err != nil {
		return nil, err
	}
	var (
		result     Recalculated
		impossible int64
	)
	err := p.pool.QueryRow(ctx, p.in(weighUnitSQL), year, unit, farthestKm).Scan(&result.Flights, &result.NoFactor, &impossible)
	if err != nil {
		return nil, fmt.Errorf("check the flights of %s: %w", unit, err)
	}
	if impossible > 0 {
		return nil, runner.Permanent(fmt.Errorf("a distance of more than %d km, half way round the Earth, in %d of %d flights: are they in miles?",
			farthestKm, impossible, result.Flights))
	}
	outcome := runner.Done(result)
	if result.NoFactor > 0 {
		outcome.Warning()
		message := fmt.Sprintf("%d flights have a distance outside all bands", result.NoFactor)
		if err := j.Emit(ctx, "emissions.no_factor", "warn", message, result); err != nil {
			return nil, err
		}
	}
	return p.finish(ctx, j, outcome, func(ctx context.Context, tx pgx.Tx) error {
		var written Recalculated
		if err := tx.QueryRow(ctx, p.in(recalcSQL), year, unit).Scan(&written.Flights, &written.NoFactor); err != nil {
			return fmt.Errorf("write the emissions of %s: %w", unit, err)
		}
		if written != result { // storing them would make the emissions disagree with the result
			return fmt.Errorf("the flights of %s changed during the calculation", unit)
		}
		return nil
	})
}
