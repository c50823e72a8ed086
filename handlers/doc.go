// Package handlers is a worked example, and its names may change in any release: a pipeline of four kinds of jobs that computes the emissions of each airport from a file of
// flights. It uses only the public API of package runner.
//
//	                             ┌▶ emission_recalc ATL ─┐
//	csv_ingest ──▶ factor_sync ──┼▶ emission_recalc BOS ─┼──▶ unit_totals
//	 activities      factors     └▶ emission_recalc …   ─┘     totals
//	 units                           emissions
//
// The ingest ends with runner.Then(next), which commits its result, its final writes and the next step's row together. It writes in batches
// through Job.Tx, which commits a checkpoint with each batch. After a crash, the next run continues from that checkpoint. Every batch
// replaces the lines that it covers, so no line is lost or stored twice.
//
// The factor sync ends with runner.FanOut(…).Join(next). It waits, without using a slot, for one recalculation per unit; all of them are
// inserted in the commit that writes the factors. Each recalculation writes its unit's emissions with InTx, in the commit that ends it. A
// unit is therefore counted once, even after crashes. The join reads the outcomes with Job.Branches. If some units could not be
// recalculated, it excludes and reports them, and the pipeline ends as partial.
//
// Each table has one writer. A recalculation's subject is a year and a unit; the join's subject is the year. Datasets of different years
// can be processed concurrently; two datasets of the same year take turns, unit by unit.
//
// With [Options.Fenced], the handlers write in separate commits instead, guarded by the job's fence; see fenced.go.
//
// A unit in the example is a departure airport. A flight counts as one passenger over its great-circle distance. Its emissions are the
// distance in kilometers × the factor of its distance band:
//
//	kg CO2e = distance_miles × 1.609344 × kg_co2e_per_passenger_km
//
// PostgreSQL computes everything in its exact numeric type, so every digit of the sum is independent of the order of the rows. The files in
// testdata are real; their sources are listed in SOURCES.md there.
package handlers
