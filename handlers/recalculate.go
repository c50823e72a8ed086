package handlers

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// Recalculate computes the emission of every flight of a year with the factors of that year, then the totals. Flights
// whose distance is in no band get none, are counted, and make the outcome a warning.
type Recalculate struct {
	Year int `json:"year"`
}

// Kind implements runner.Args.
func (Recalculate) Kind() string { return "emission_recalc" }

// Recalculated is the result of a [Recalculate].
type Recalculated struct {
	Flights  int64 `json:"flights"`
	NoFactor int64 `json:"no_factor"` // flights whose distance is in no band
}

// position is the last flight of a batch, kept with it: the next run goes on after it.
type position struct {
	Source string `json:"source"`
	Line   int64  `json:"line"`
	Done   int64  `json:"done"` // flights up to here
}

// nextBatchSQL finds where the batch of $4 flights after ($2, $3) ends. Plan: activities_pkey from the position on.
const nextBatchSQL = `
select count(*), coalesce((array_agg(source order by source desc, line desc))[1], $2),
	coalesce((array_agg(line order by source desc, line desc))[1], $3)
from (
	select source, line from co2.activities where year = $1 and (source, line) > ($2, $3) order by source, line limit $4
) page`

// recalcSQL computes the flights after ($2, $3) up to ($4, $5) and writes what has changed. 1 statute mile is 1.609344 km,
// exactly (international agreement of 1959). Plan: activities_pkey from the position on, emissions by primary key.
const recalcSQL = `
with rated as materialized (
	select a.source, a.line, a.origin, f.band, a.distance_miles * 1.609344 as km,
		a.distance_miles * 1.609344 * f.kg_per_km as kg
	from co2.activities a left join co2.factors f on f.year = a.year
		and a.distance_miles * 1.609344 >= f.min_km and (f.max_km is null or a.distance_miles * 1.609344 < f.max_km)
	where a.year = $1 and (a.source, a.line) > ($2, $3) and (a.source, a.line) <= ($4, $5)
), removed as (
	delete from co2.emissions e using rated r
	where r.band is null and e.year = $1 and e.source = r.source and e.line = r.line
)
insert into co2.emissions as e (year, source, line, unit, band, km, kg)
select $1, source, line, origin, band, km, kg from rated where band is not null
on conflict (year, source, line) do update
set unit = excluded.unit, band = excluded.band, km = excluded.km, kg = excluded.kg
where (e.unit, e.band, e.km, e.kg) is distinct from (excluded.unit, excluded.band, excluded.km, excluded.kg)`

// dropOrphansSQL removes the emissions of flights that are gone.
const dropOrphansSQL = `
delete from co2.emissions e where e.year = $1
	and not exists (select from co2.activities a where (a.year, a.source, a.line) = (e.year, e.source, e.line))`

// countNoFactorSQL counts the flights of a year that have no emission.
const countNoFactorSQL = `
select count(*) from co2.activities a where a.year = $1
	and not exists (select from co2.emissions e where (e.year, e.source, e.line) = (a.year, a.source, a.line))`

func (p *pipeline) recalculate(ctx context.Context, j *runner.Job[Recalculate]) (*runner.Outcome, error) {
	year := j.Args.Year
	if err := checkYear(year); err != nil {
		return nil, err
	}
	flights, err := p.recalculateAll(ctx, j)
	if err != nil {
		return nil, err
	}
	result := Recalculated{Flights: flights}
	err = j.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.in(dropOrphansSQL), year); err != nil {
			return err
		}
		return tx.QueryRow(ctx, p.in(countNoFactorSQL), year).Scan(&result.NoFactor)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("remove emissions of flights that are gone: %w", err)
	}
	outcome := runner.Then(TotalUnits{Year: year}).Result(result)
	if result.NoFactor > 0 {
		outcome.Warning()
		message := fmt.Sprintf("%d flights have a distance that is in no band", result.NoFactor)
		err = j.Emit(ctx, "emissions.no_factor", "warn", message, result)
	}
	return outcome, err
}

// recalculateAll goes through the flights of the year in batches, from where the latest checkpoint says, and returns
// their number.
func (p *pipeline) recalculateAll(ctx context.Context, j *runner.Job[Recalculate]) (int64, error) {
	year := j.Args.Year
	var total int64
	if err := p.pool.QueryRow(ctx, p.in(`select count(*) from co2.activities where year = $1`), year).Scan(&total); err != nil {
		return 0, fmt.Errorf("count flights: %w", err)
	}
	var at position
	if _, err := j.LastCheckpoint(&at); err != nil {
		return 0, err
	}
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		var (
			next position
			rows int64
		)
		err := p.pool.QueryRow(ctx, p.in(nextBatchSQL), year, at.Source, at.Line, p.BatchRows).Scan(&rows, &next.Source, &next.Line)
		if err != nil {
			return 0, fmt.Errorf("find the flights after %s:%d: %w", at.Source, at.Line, err)
		}
		if rows == 0 {
			return at.Done, nil
		}
		next.Done = at.Done + rows
		err = j.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, p.in(recalcSQL), year, at.Source, at.Line, next.Source, next.Line)
			return err
		}, next)
		if err != nil {
			return 0, fmt.Errorf("recalculate after %s:%d: %w", at.Source, at.Line, err)
		}
		at = next
		j.Progress(at.Done, max(total, at.Done))
	}
}
