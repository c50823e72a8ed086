// Package handlers is the worked example: a pipeline of four kinds of job that turns a file of flights into the
// emissions of each airport, written as a user of package runner would write it.
//
//	                             ┌▶ emission_recalc ATL ─┐
//	csv_ingest ──▶ factor_sync ──┼▶ emission_recalc BOS ─┼──▶ unit_totals
//	 activities      factors     └▶ emission_recalc …   ─┘     totals
//	 units                           emissions
//
// The ingest ends with runner.Then(next): its result, its last writes and the next step's row are one commit. It writes in
// batches through Job.Tx, whose checkpoint is committed with the batch; a run that follows a crash goes on from there, and every
// batch replaces what it covers, so that nothing is lost and nothing is there twice.
//
// The factor sync ends its run with runner.FanOut(…).Join(next): it waits, without a slot, for one recalculation a unit, all of
// which were inserted in the commit that wrote the factors. Each of them writes its unit's emissions in InTx, in the commit that
// ends it, so that a unit is counted once, whatever dies. The join reads with Job.Branches what became of them: a unit that could
// not be recalculated is left out and named, and makes the pipeline partial.
//
// Each table has one writer. What a recalculation is about, its subject, is a year and a unit: datasets of several years can be
// under way at once, and two of the same year take turns, unit by unit.
//
// The unit of the example is an airport of departure. A flight counts one passenger over its great-circle distance, and
// emits kilometres × the factor of their distance band:
//
//	kg CO2e = distance_miles × 1.609344 × kg_co2e_per_passenger_km
//
// Everything is computed in PostgreSQL's exact numeric type, so the sum does not depend on the order of rows or on who
// computed it, to the last digit. The files in testdata are real; SOURCES.md there says where they come from.
package handlers
