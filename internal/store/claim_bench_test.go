package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
)

// BenchmarkClaim measures claims of 5 and of 50 jobs: alone, and behind other rows that a claim must not read. Run it with -benchtime 200x.
// The jobs come from one lane, or one each from lanes that were made from a template. server-ms is the median time on the server.
func BenchmarkClaim(b *testing.B) {
	const rows = 200_000
	many := func(w *world, change func(*store.NewJob)) {
		for range rows / 10_000 {
			w.put(slices.Repeat([]func(*store.NewJob){change}, 10_000)...)
		}
	}
	madeLanes := func(w *world, _ string) func() {
		w.exec(`insert into trapeze.lanes (name) values ('t/*')`)
		w.exec(`insert into trapeze.lanes (name, template) select 't/' || i, 't/*' from generate_series(1, 2000) i`)
		for page := range 20 {
			var list []func(*store.NewJob)
			for i := range rows / 20 {
				list = append(list, func(n *store.NewJob) { n.Lane = fmt.Sprint("t/", (page*rows/20+i)%2000+1) })
			}
			w.put(list...)
		}
		return nil
	}
	behind := []struct {
		what string
		rows func(w *world, podID string) (release func())
	}{
		{"nothing", nil},
		{"the jobs of one busy subject", func(w *world, _ string) func() { many(w, about("busy")); return nil }},
		{"jobs of a kind without a handler", func(w *world, _ string) func() {
			many(w, func(n *store.NewJob) { n.Kind = "other" })
			return nil
		}},
		{"the jobs of a full lane", func(w *world, _ string) func() {
			w.exec(`insert into trapeze.lanes (name, slots) values ('full', 1)`)
			many(w, func(n *store.NewJob) { n.Lane = "full" })
			return nil
		}},
		{"the jobs of 2,000 made lanes", madeLanes},
		{"one job each of 2,000 made lanes", madeLanes},
		{"1,000,000 parked jobs of 100,000 keys", func(w *world, _ string) func() { w.parkKeyed(1_000_000, 100_000); return nil }},
		{"300,000 dead rows", func(w *world, podID string) func() {
			release := w.freeze(`set transaction isolation level repeatable read; select from trapeze.live`)
			for range 30 {
				w.put(slices.Repeat([]func(*store.NewJob){plain}, 10_000)...)
				var ends []store.Ending
				for _, c := range w.claims(podID, 10_000) {
					ends = append(ends, ending(c))
				}
				_, err := w.Finish(w.ctx(), podID, ends)
				w.is.NoErr(err)
			}
			return func() { release(true) }
		}},
	}
	for _, n := range []int{5, 50} {
		for _, c := range behind {
			b.Run(fmt.Sprintf("%d/%s", n, c.what), func(b *testing.B) {
				w := newWorld(b)
				podID := w.pod("a")
				if c.rows != nil {
					if release := c.rows(w, podID); release != nil {
						defer release()
					}
				}
				w.put(slices.Repeat([]func(*store.NewJob){plain}, n*(b.N+10))...)
				w.exec(`analyze trapeze.live, trapeze.jobs, trapeze.parked`)
				w.exec(`select pg_sleep(0.25)`) // a mark is 200 ms old
				marks, _, err := w.Marks(w.ctx(), map[string][]store.Mark{"default": nil}, []string{"k"}, 0)
				w.is.NoErr(err)
				var took []float64
				for i := range b.N + 10 {
					wants := []store.Want{{Lane: "default", N: n, Marks: marks["default"]}}
					if strings.HasPrefix(c.what, "one job each") {
						wants = nil
						for lane := range n {
							wants = append(wants, store.Want{Lane: fmt.Sprint("t/", (i*n+lane)%2000+1), N: 1})
						}
					}
					found, err := w.Claim(w.ctx(), podID, wants, []string{"k"}, nil, true)
					w.is.NoErr(err)
					w.is.Equal(len(found.Jobs), n)
					if i >= 10 {
						took = append(took, float64(found.Took.Microseconds())/1000)
					}
				}
				slices.Sort(took)
				b.ReportMetric(took[len(took)/2], "server-ms")
				b.ReportMetric(float64(len(marks["default"])), "marks")
			})
		}
	}
}
