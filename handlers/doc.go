// Package handlers is the worked example: a pipeline of four kinds of job that turns a file of flights into the emissions of each
// airport. It uses only what a user of package runner can use.
//
//	                             ┌▶ emission_recalc ATL ─┐
//	csv_ingest ──▶ factor_sync ──┼▶ emission_recalc BOS ─┼──▶ unit_totals
//	 activities      factors     └▶ emission_recalc …   ─┘     totals
//	 units                           emissions
//
// The ingest ends with runner.Then(next): its result, its last writes and the row of the next step are one commit. It writes in
// batches through Job.Tx, which commits a checkpoint with each batch. After a crash the next run continues from that checkpoint.
// Every batch replaces the lines that it covers, so that none is lost and none is stored twice.
//
// The factor sync ends its run with runner.FanOut(…).Join(next): it waits, without a slot, for one recalculation per unit, all of
// which were inserted in the commit that wrote the factors. Each recalculation writes its unit's emissions with InTx, in the
// commit that ends it. A unit is therefore counted once, even after crashes. The join reads their outcomes with Job.Branches. It
// leaves out and reports units that could not be recalculated, and the pipeline then ends as partial.
//
// Each table has one writer. The subject of a recalculation is a year and a unit. Datasets of several years can be processed at
// once; two of the same year take turns, unit by unit.
//
// The unit of the example is an airport of departure. A flight counts one passenger over its great-circle distance, and emits
// kilometres × the factor of its distance band:
//
//	kg CO2e = distance_miles × 1.609344 × kg_co2e_per_passenger_km
//
// PostgreSQL computes everything in its exact numeric type. The sum therefore does not depend on the order of rows, to the last
// digit. The files in testdata are real; SOURCES.md there names their sources.
package handlers
