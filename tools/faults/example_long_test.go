//go:build long

package faults

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestExampleWithPodKilledMidway(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	undisturbed, _ := totals(t, func(*world, *pod) {})
	is.True(len(undisturbed) > 100) // the run read the real file

	killed, h := totals(t, func(w *world, first *pod) {
		pgtest.Wait(t, "the ingest is in the middle of its file", func() bool {
			return w.yes("select count(*) between 3000 and 15000 from co2.activities")
		})
		first.kill()
	})
	is.Equal(killed, undisturbed) // the totals are equal to the last digit
	is.Equal(h.counts["job.recovered"], 1)
}

// totals runs the example on two pods, applies a fault to the first pod, and returns the example's totals.
func totals(t *testing.T, fault func(*world, *pod)) ([]handlers.UnitTotal, history) {
	t.Helper()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	is.NoErr(handlers.Setup(t.Context(), w.pool, example))
	is.NoErr(handlers.Register(w.client, w.pool, example))
	_, err := w.pool.Exec(t.Context(), countingSQL)
	is.NoErr(err)
	first := w.start(podConfig{Name: "first"}, "")
	w.submit(handlers.Ingest{Year: 2024})
	first.waitOpen()
	pgtest.Wait(t, "the ingest runs", func() bool { return w.yes("select exists (select from trapeze.live where pod is not null)") })
	w.start(podConfig{Name: "second"}, "")
	fault(w, first)
	h := w.finish()
	w.checkUnits()
	found, err := handlers.ReadTotals(t.Context(), w.pool, example, 2024)
	is.NoErr(err)
	return found, h
}

// countingSQL makes the database record every commit that writes emissions, even a commit that changes no rows.
const countingSQL = `
create table counted (xid xid8 not null);
create function count_commit() returns trigger language plpgsql as $$
	begin insert into counted values (pg_current_xact_id()); return null; end $$;
create trigger counted after insert on co2.emissions for each statement execute function count_commit()`

// checkUnits checks that the example's only pipeline fanned out once, that each unit was counted once and in a separate commit, and that
// exactly one join followed.
func (w *world) checkUnits() {
	w.t.Helper()
	is := is.New(w.t)
	units := read[int](w, "select count(distinct origin) from co2.activities")
	is.True(units > 100)
	is.Equal(read[int](w, "select count(*) from trapeze.jobs where kind = 'emission_recalc'"), units)
	is.Equal(read[int](w, "select count(distinct subject) from trapeze.jobs where kind = 'emission_recalc'"), units)
	is.Equal(read[int](w, "select count(*) from counted"), units)
	is.Equal(read[int](w, "select count(distinct xid) from counted"), units)
	is.Equal(read[int](w, "select count(*) from trapeze.jobs where kind = 'unit_totals'"), 1)
	is.Equal(read[string](w, "select string_agg(status, ' ') from trapeze.pipeline"), "succeeded")
}
