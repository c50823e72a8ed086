//go:build long

package handlers_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestPipelineTablesInCustomSchema(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := handlers.Options{Schema: "travel"}
	for range 2 {
		is.NoErr(handlers.Setup(t.Context(), pool, o)) // calling it again is harmless
	}
	steps := newPod(t, pool, o).pipeline(handlers.Ingest{Year: 2024})
	is.Equal(len(steps), 3)
	units, err := handlers.ReadTotals(t.Context(), pool, o, 2024)
	is.NoErr(err)
	is.Equal(units[0].Unit, "ORD")                                                         // the largest unit of the sample
	is.True(handlers.Setup(t.Context(), pool, handlers.Options{Schema: `x";drop`}) != nil) // not a valid schema name
}

func TestRealFilesReadTwice(t *testing.T) {
	t.Parallel()
	flights, byUnit, _ := reference(t)
	readsTwice(t, newBench(t), handlers.Ingest{Year: 2024}, flights, int64(len(byUnit)))
}

func TestFencedPipelineTotals(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	b.stop()
	_, byUnit, sum := reference(t)
	b = newPod(t, b.pool, handlers.Options{Fenced: true})
	steps := b.pipeline(handlers.Ingest{Year: 2024})
	is.Equal(len(steps), 3)
	is.True(equal(sum, string(decode[handlers.Totalled](t, steps[2]).KgCO2e)))
	is.Equal(b.count(is, "select count(*) from co2.fences"), int64(len(byUnit)+3)) // each job has a guard row
}
