//go:build long

package faults

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestTheExampleGivesTheSameTotalsWhenItsPodIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	undisturbed, _ := totals(t, func(*world, *pod) {})
	is.True(len(undisturbed) > 100) // it read the real file

	killed, h := totals(t, func(w *world, first *pod) {
		pgtest.Wait(t, "the ingest is in the middle of its file", func() bool {
			return w.yes("select count(*) between 3000 and 15000 from co2.activities")
		})
		first.kill()
	})
	is.Equal(killed, undisturbed) // equal to the last digit
	is.Equal(h.counts["job.recovered"], 1)
}
