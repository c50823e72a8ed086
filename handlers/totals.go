package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// TotalUnits adds up a year's emissions by departure airport. It joins the recalculations of a [SyncFactors] and ends the pipeline. A unit
// whose recalculation failed is excluded from all totals, is listed in the result, and makes the outcome a warning. When submitted
// separately, TotalUnits adds up all emissions of the year; give it the year as its subject, like the join.
type TotalUnits struct {
	Year int `json:"year"`
}

// Kind implements runner.Args.
func (TotalUnits) Kind() string { return "unit_totals" }

// Totalled is the result of a [TotalUnits].
type Totalled struct {
	Units   int64       `json:"units"`
	Flights int64       `json:"flights"`
	KgCO2e  json.Number `json:"kg_co2e"` // with full precision

	NoFactor int64     `json:"no_factor"`           // flights without emissions because their distance is outside all bands
	Bad      int64     `json:"bad"`                 // number of units that could not be recalculated
	BadUnits []BadUnit `json:"bad_units,omitempty"` // the first 1000 of them
}

// BadUnit is a unit that could not be recalculated, with the reason.
type BadUnit struct {
	Unit   string `json:"unit"`
	Reason string `json:"reason"`
}

// UnitTotal is one departure airport's total for a year. Km and KgCO2e are exact.
type UnitTotal struct {
	Unit    string
	Name    *string // nil if the list of airports does not contain it
	City    *string
	Flights int64
	Km      string
	KgCO2e  string
}

const (
	sumUnitsSQL = `
select unit, null::text, null::text, count(*), trim_scale(sum(km))::text, trim_scale(sum(kg))::text
from co2.emissions where year = $1 and unit <> all($2::text[]) group by unit order by unit`

	sumSQL = `
select count(distinct unit), count(*), trim_scale(coalesce(sum(kg), 0))::text
from co2.emissions where year = $1 and unit <> all($2::text[])`

	dropTotalsSQL = `delete from co2.totals where year = $1 and unit <> all($2::text[])`

	keepTotalsSQL = `
insert into co2.totals as t (year, unit, flights, km, kg)
select $1, unit, flights, km::numeric, kg::numeric
from unnest($2::text[], $3::bigint[], $4::text[], $5::text[]) as s (unit, flights, km, kg)
on conflict (year, unit) do update set flights = excluded.flights, km = excluded.km, kg = excluded.kg
where (t.flights, t.km, t.kg) is distinct from (excluded.flights, excluded.km, excluded.kg)`

	readTotalsSQL = `
select t.unit, u.name, u.city, t.flights, t.km::text, t.kg::text
from co2.totals t left join co2.units u on u.code = t.unit
where t.year = $1 order by t.kg desc, t.unit`
)

// total computes the sums in one snapshot, so that the result and the table agree. The table is written by finish.
func (p *pipeline) total(ctx context.Context, j *runner.Job[TotalUnits]) (*runner.Outcome, error) {
	year := j.Args.Year
	if err := checkYear(year); err != nil {
		return nil, err
	}
	var (
		result Totalled
		units  []UnitTotal
	)
	bad, err := p.joined(ctx, j, &result)
	if err != nil {
		return nil, err
	}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, p.pool, snapshot, func(tx pgx.Tx) (err error) {
		if units, err = list(ctx, tx, p.in(sumUnitsSQL), year, bad); err != nil {
			return err
		}
		return tx.QueryRow(ctx, p.in(sumSQL), year, bad).Scan(&result.Units, &result.Flights, &result.KgCO2e)
	})
	if err != nil {
		return nil, fmt.Errorf("total the emissions of %d: %w", year, err)
	}
	n := len(units)
	names, flights, kms, kgs := make([]string, n), make([]int64, n), make([]string, n), make([]string, n)
	for i, u := range units {
		names[i], flights[i], kms[i], kgs[i] = u.Unit, u.Flights, u.Km, u.KgCO2e
	}
	j.Progress(int64(n), int64(n))
	outcome := runner.Done(result)
	if result.Bad > 0 {
		outcome.Warning()
	}
	return p.finish(ctx, j, outcome, func(ctx context.Context, tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(p.in(dropTotalsSQL), year, names)
		batch.Queue(p.in(keepTotalsSQL), year, names, flights, kms, kgs)
		return tx.SendBatch(ctx, &batch).Close()
	})
}

// badUnitsNamed is the maximum number of units listed in the result.
const badUnitsNamed = 1000

// joined reads the recalculations' outcomes and returns the units that could not be recalculated.
func (p *pipeline) joined(ctx context.Context, j *runner.Job[TotalUnits], result *Totalled) (bad []string, err error) {
	bad = []string{}
	for b, err := range j.Branches(ctx) {
		switch {
		case errors.Is(err, runner.ErrNotFound):
			return bad, nil // the job was submitted separately
		case err != nil:
			return nil, fmt.Errorf("read the recalculations: %w", err)
		case b.State == runner.StateSucceeded:
			var unit Recalculated
			if err := b.Result(&unit); err != nil {
				return nil, fmt.Errorf("read the recalculation of %s: %w", b.Subject, err)
			}
			result.NoFactor += unit.NoFactor
		default:
			badUnit := BadUnit{unitIn(j.Args.Year, b.Subject), reasonOf(b)}
			bad = append(bad, badUnit.Unit)
			if result.Bad++; result.Bad <= badUnitsNamed {
				result.BadUnits = append(result.BadUnits, badUnit)
			}
		}
	}
	return bad, nil
}

// reasonOf returns why a branch did not succeed: the first line of its error, truncated to 200 characters.
func reasonOf(b runner.Branch) string {
	reason, _, _ := strings.Cut(cmp.Or(b.Error, string(b.Reason)), "\n")
	return fmt.Sprintf("%.200s", reason)
}

// ReadTotals returns a year's totals, largest first.
func ReadTotals(ctx context.Context, pool *pgxpool.Pool, o Options, year int) ([]UnitTotal, error) {
	p, err := newPipeline(pool, o)
	if err != nil {
		return nil, err
	}
	totals, err := list(ctx, pool, p.in(readTotalsSQL), year)
	if err != nil {
		return nil, fmt.Errorf("read the totals of %d: %w", year, err)
	}
	return totals, nil
}

func list(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args ...any) ([]UnitTotal, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[UnitTotal])
}
