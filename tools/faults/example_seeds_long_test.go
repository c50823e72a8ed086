//go:build long

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// TestExampleWithRandomPodKills kills pods at random but reproducible times, between the first row of the ingest
// and the join. EXAMPLE_SEEDS sets the number of seeds; `make example` uses it.
func TestExampleWithRandomPodKills(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	seeds := exampleSeeds
	if text := os.Getenv("EXAMPLE_SEEDS"); text != "" {
		var err error
		seeds, err = strconv.Atoi(text)
		is.NoErr(err)
	}
	undisturbed, _ := totals(t, func(*world, *pod) {})
	atOnce := make(chan struct{}, 2) // each seed needs several processes and a database
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			is := is.New(t)
			killed, h := totals(t, func(w *world, first *pod) { killThree(w, uint64(seed+1)) })
			is.Equal(killed, undisturbed) // the totals are equal to the last digit
			t.Logf("%d runs were taken over", h.counts["job.recovered"])
		})
	}
}

// killThree kills three pods, one after another, and starts a replacement for each of them.
func killThree(w *world, seed uint64) {
	w.t.Helper()
	draw := rand.New(rand.NewPCG(seed, 0))
	moments := []float64{draw.Float64(), draw.Float64(), draw.Float64()}
	slices.Sort(moments)
	for n, moment := range moments {
		what, sql, atLeast := momentOf(moment)
		pgtest.WaitFor(w.t, time.Minute, what, func() bool { return w.yes(sql, atLeast) })
		_ = pause(w.t.Context(), draw.IntN(30)) // so that each kill hits a different statement
		pods := slices.DeleteFunc(slices.Clone(w.pods), func(p *pod) bool { return !p.alive() })
		victim := pods[draw.IntN(len(pods))]
		victim.kill()
		w.t.Logf("kill -9 %s: %s", victim.name, what)
		w.launch(podConfig{Name: fmt.Sprint("substitute-", n+1)}, "")
	}
}

// momentOf maps a number from 0 to 1 to the condition for killing a pod. The first quarter covers the ingest of 20,000 rows, and the rest
// covers the completion of its 223 jobs.
func momentOf(at float64) (what, sql string, atLeast int) {
	if at < 0.25 {
		rows := int(at * 4 * 20_000)
		return fmt.Sprintf("%d rows are read", rows), "select count(*) >= $1 from co2.activities", rows
	}
	jobs := 1 + int((at-0.25)/0.75*222)
	return fmt.Sprintf("%d jobs have ended", jobs), "select count(*) >= $1 from trapeze.done", jobs
}
