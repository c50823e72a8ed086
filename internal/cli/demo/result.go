package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// readResult reads the figures from the steps' results.
func (d *demo) readResult(ctx context.Context, steps []job.Job) error {
	ingested, total, err := resultsOf(steps)
	if err != nil {
		return err
	}
	d.report.Rows, d.report.Units, d.report.Total = ingested.Rows, total.Units, total.KgCO2e
	d.report.Warnings = ingested.Bad + total.NoFactor
	d.report.BadUnits, d.bad, d.counted = total.BadUnits, total.Bad, total.Flights
	d.totals, err = handlers.ReadTotals(ctx, d.pool, handlers.Options{Schema: d.co2}, demoYear)
	return err
}

// resultsOf decodes the results of the first and last steps of a finished pipeline.
func resultsOf(steps []job.Job) (first handlers.Ingested, last handlers.Totalled, err error) {
	if err := json.Unmarshal(steps[0].Result, &first); err != nil {
		return first, last, fmt.Errorf("read the result of %s: %w", steps[0].Kind, err)
	}
	if err := json.Unmarshal(steps[len(steps)-1].Result, &last); err != nil {
		return first, last, fmt.Errorf("read the result of the pipeline: %w", err)
	}
	return first, last, nil
}

// printResult prints the largest units and the total.
func (d *demo) printResult(first job.Job, took time.Duration) {
	most := d.totals[:min(len(d.totals), 10)]
	d.say("")
	d.say("The %d largest of %s departure airports:", len(most), thousands(d.report.Units))
	d.say("")
	for _, u := range most {
		name := cli.Text(u.Name)
		if name == "" {
			name = "(not in the list of airports)"
		}
		d.say("  %-4s %-30s %7s flights %13s kg CO2e", u.Unit, text.Short(text.Printable(name), 30), thousands(u.Flights), commas(roundDecimal(u.KgCO2e)))
	}
	d.say("")
	d.say("Total: %s kg CO2e from %s flights in %.2f s.", commas(d.report.Total.String()), thousands(d.counted), took.Seconds())
	d.printBadUnits()
	if d.report.Warnings == 0 {
		return
	}
	var bad struct {
		BadRows []struct {
			Line   int64
			Reason string
		} `json:"bad_rows"`
	}
	_ = json.Unmarshal(first.Result, &bad) // already decoded once without an error
	d.say("Warnings: %s (skipped rows, or flights whose distance has no factor).", thousands(d.report.Warnings))
	for _, row := range bad.BadRows[:min(len(bad.BadRows), 5)] {
		d.say("  line %d: %s", row.Line, text.Printable(row.Reason))
	}
}

// printBadUnits prints the units that were left out.
func (d *demo) printBadUnits() {
	if d.bad == 0 {
		return
	}
	d.say("The pipeline is partial: %s airports could not be recalculated and are left out.", thousands(d.bad))
	for _, u := range d.report.BadUnits[:min(len(d.report.BadUnits), 10)] {
		d.say("  %-4s %s", text.Printable(u.Unit), text.Printable(u.Reason))
	}
}

// roundDecimal rounds an exact decimal number to one decimal place, half up.
func roundDecimal(digits string) string {
	exact, ok := new(big.Rat).SetString(digits)
	if !ok {
		return digits
	}
	return exact.FloatString(1)
}
