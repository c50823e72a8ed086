// Package handlers is the worked example: a pipeline of four kinds of job that turns a file of flights into the
// emissions of each airport, written as a user of package runner would write it.
//
//	csv_ingest ──▶ factor_sync ──▶ emission_recalc ──▶ unit_totals
//	 activities      factors          emissions           totals
//	 units
//
// Each step ends with runner.Then(next): its result, its last writes and the next step's row are one commit. Each table
// has one writer. A step that writes much writes in batches through Job.Tx, whose checkpoint is committed with the
// batch; a run that follows a crash goes on from there, and every batch replaces what it covers, so that nothing is
// lost and nothing is there twice.
//
// The unit of the example is an airport of departure. A flight counts one passenger over its great-circle distance, and
// emits kilometres × the factor of their distance band:
//
//	kg CO2e = distance_miles × 1.609344 × kg_co2e_per_passenger_km
//
// Everything is computed in PostgreSQL's exact numeric type, so the sum does not depend on the order of rows or on who
// computed it, to the last digit. The files in testdata are real; SOURCES.md there says where they come from.
package handlers
