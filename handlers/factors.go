package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/runner"
)

// SyncFactors replaces a year's emission factors with those in a file, and fans out into a [Recalculate] for each unit and a [TotalUnits]
// that joins them. If only the factors have changed, submit just a SyncFactors; the flights need not be reread.
//
// An invalid factor would silently make every total wrong, so any bad row fails the job with an error that includes its line number.
type SyncFactors struct {
	File string `json:"file,omitempty"` // has the columns of [SampleFactors], which is the default
	Year int    `json:"year"`
}

// Kind implements runner.Args.
func (SyncFactors) Kind() string { return "factor_sync" }

// SyncedFactors is the result of a [SyncFactors].
type SyncedFactors struct {
	Bands   int  `json:"bands"`
	Changed bool `json:"changed"` // whether the year's factors changed
}

// band is a distance band with its factor. The numbers keep exactly the digits that they have in the file.
type band struct {
	name     string
	min, per string
	max      *string // nil means no upper bound
}

func (p *pipeline) syncFactors(ctx context.Context, j *runner.Job[SyncFactors]) (*runner.Outcome, error) {
	a := j.Args
	if err := checkYear(a.Year); err != nil {
		return nil, err
	}
	bands, err := p.readBands(cmp.Or(a.File, SampleFactors))
	if err != nil {
		return nil, err
	}
	names, mins, maxs, pers := make([]string, len(bands)), make([]string, len(bands)), make([]*string, len(bands)), make([]string, len(bands))
	for i, b := range bands {
		names[i], mins[i], maxs[i], pers[i] = b.name, b.min, b.max, b.per
	}
	result := SyncedFactors{Bands: len(bands)}
	err = p.pool.QueryRow(ctx, p.in(factorsDifferSQL), a.Year, names, mins, maxs, pers).Scan(&result.Changed)
	if err != nil {
		return nil, fmt.Errorf("compare factors: %w", err)
	}
	units, err := p.unitsOf(ctx, a.Year)
	if err != nil {
		return nil, err
	}
	recalculations := make([]runner.Args, len(units))
	for i, unit := range units {
		recalculations[i] = runner.With(Recalculate{Year: a.Year, Unit: unit}, runner.Subject(subjectOf(a.Year, unit)))
	}
	// Fan out even if no factor has changed, because there may be new flights. Emissions that are already correct are not rewritten. This
	// handler reports no progress, so that the job shows its recalculations' progress. The join's subject is the year, so two totals for
	// the same year run one after the other. Otherwise, the first to read could be the last to write.
	outcome := runner.FanOut(recalculations...).Join(TotalUnits{Year: a.Year}, runner.Subject(strconv.Itoa(a.Year))).Result(result)
	return p.finish(ctx, j, outcome, func(ctx context.Context, tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(p.in(dropFactorsSQL), a.Year, names)
		batch.Queue(p.in(keepFactorsSQL), a.Year, names, mins, maxs, pers)
		return tx.SendBatch(ctx, &batch).Close()
	})
}

// unitsOf returns a year's units.
func (p *pipeline) unitsOf(ctx context.Context, year int) ([]string, error) {
	rows, err := p.pool.Query(ctx, p.in(unitsSQL), year)
	if err != nil {
		return nil, fmt.Errorf("list the units of %d: %w", year, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

const (
	givenFactors = `unnest($2::text[], $3::text[], $4::text[], $5::text[]) as g (band, min_km, max_km, kg_per_km)`

	factorsDifferSQL = `
with given as (
	select band, min_km::numeric, max_km::numeric, kg_per_km::numeric from ` + givenFactors + `
), kept as (
	select band, min_km, max_km, kg_per_km from co2.factors where year = $1
)
select exists (table given except table kept) or exists (table kept except table given)`

	dropFactorsSQL = `delete from co2.factors where year = $1 and band <> all($2::text[])`

	keepFactorsSQL = `
insert into co2.factors (year, band, min_km, max_km, kg_per_km)
select $1, band, min_km::numeric, max_km::numeric, kg_per_km::numeric from ` + givenFactors + `
on conflict (year, band) do update
set min_km = excluded.min_km, max_km = excluded.max_km, kg_per_km = excluded.kg_per_km`
)

// maxBands is the maximum number of bands in a file of factors.
const maxBands = 1000

// readBands reads a file of factors and checks that its bands do not overlap. Its errors are permanent, except read errors.
func (p *pipeline) readBands(file string) ([]band, error) {
	t, err := p.openTable(file, "band", "min_km", "max_km", "kg_co2e_per_passenger_km")
	if err != nil {
		return nil, err
	}
	defer t.Close()
	var bands []band
	for {
		err := t.next()
		if errors.Is(err, io.EOF) {
			break
		}
		var b band
		if err == nil {
			b, err = t.band()
		}
		if bad, isBad := errors.AsType[*badRow](err); isBad {
			return nil, runner.Permanent(fmt.Errorf("%s, %w: correct it, no factors have been changed", file, bad))
		}
		if err != nil {
			return nil, err
		}
		for _, other := range bands {
			if b.name == other.name || b.overlaps(other) {
				return nil, runner.Permanent(fmt.Errorf("%s, line %d: band %q and band %q overlap: give every distance one factor",
					file, t.line, other.name, b.name))
			}
		}
		if bands = append(bands, b); len(bands) > maxBands {
			return nil, runner.Permanent(fmt.Errorf("%s has more than %d bands", file, maxBands))
		}
	}
	if len(bands) == 0 {
		return nil, runner.Permanent(fmt.Errorf("%s has no factors: add a row for each distance band", file))
	}
	return bands, nil
}

// band parses the current row.
func (t *table) band() (band, error) {
	b := band{name: t.get("band"), min: t.get("min_km"), per: t.get("kg_co2e_per_passenger_km")}
	if b.name == "" {
		return b, t.bad("band has no name")
	}
	for _, column := range []string{"min_km", "kg_co2e_per_passenger_km"} {
		if !decimal.MatchString(t.get(column)) {
			return b, t.bad("%s %.40q: want a number such as 1500", column, t.get(column))
		}
	}
	if highest := t.get("max_km"); highest != "" {
		if !decimal.MatchString(highest) || !less(b.min, highest) {
			return b, t.bad("max_km %.40q: want a number above min_km, or empty for no upper bound", highest)
		}
		b.max = &highest
	}
	return b, nil
}

// overlaps reports whether any distance falls into both bands. A band includes its min and excludes its max.
func (b band) overlaps(other band) bool {
	return (b.max == nil || less(other.min, *b.max)) && (other.max == nil || less(b.min, *other.max))
}

// less compares two decimals exactly.
func less(a, b string) bool {
	x, _ := new(big.Rat).SetString(a)
	y, _ := new(big.Rat).SetString(b)
	return x.Cmp(y) < 0
}

func checkYear(year int) error {
	if year < 1900 || year > 2200 {
		return runner.Permanent(fmt.Errorf("%w: year %d: want 1900 to 2200", runner.ErrInvalidArgs, year))
	}
	return nil
}
