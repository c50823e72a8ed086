//go:build long

package handlers_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/runner"
)

// Two pods process datasets of three years concurrently. One of the years comes from two files.
func TestConcurrentDatasets(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	newPod(t, b.pool, handlers.Options{})
	half := func(name, miles string) string {
		return file(t, name, header+strings.Repeat("2024-01-01T00:00:00Z,ATL,JFK,"+miles+"\n2024-01-01T00:00:00Z,SEA,JFK,"+miles+"\n", 500))
	}
	jobs := []struct {
		args    handlers.Ingest
		subject string
	}{
		{handlers.Ingest{Year: 2023}, "travel/2023"}, {handlers.Ingest{Year: 2024}, "travel/2024"},
		{handlers.Ingest{Year: 2025, File: half("a.csv", "100")}, "travel/2025"}, {handlers.Ingest{Year: 2025, File: half("b.csv", "200")}, "travel/2025"},
	}
	var submitting sync.WaitGroup
	ids := make([]int64, len(jobs))
	for i, j := range jobs {
		submitting.Go(func() {
			made, err := b.Enqueue(t.Context(), j.args, runner.Subject(j.subject))
			if err != nil {
				t.Error(err)
			}
			ids[i] = made.ID
		})
	}
	submitting.Wait()
	_, byUnit, sum := reference(t)
	for i, id := range ids {
		steps := b.wait(id)
		is.Equal(status(b, id), "succeeded")
		if total := decode[handlers.Totalled](t, steps[2]); i < 2 {
			is.True(equal(sum, string(total.KgCO2e))) // the same sum as if its pipeline had run alone
			is.Equal(total.Units, int64(len(byUnit)))
		}
	}
	of2025, err := handlers.ReadTotals(t.Context(), b.pool, handlers.Options{}, 2025)
	is.NoErr(err)
	is.Equal(len(of2025), 2)
	for _, u := range of2025 {
		is.Equal(u.Flights, int64(1000)) // from both files
		is.Equal(u.KgCO2e, "61557.408")  // 500 × 300 miles × 1.609344 × 0.255
	}
}
