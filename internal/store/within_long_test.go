//go:build long

package store_test

import (
	"encoding/json"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestListPageOfLargeJobs(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"prepared": false, "behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			w := newWorldOn(t, pgtest.Pool(t), store.Options{BehindPooler: pooler})
			heavy := func(n *store.NewJob) { n.Args = large }
			ids := w.put(heavy, heavy, heavy, heavy, heavy, heavy, heavy, heavy, heavy, heavy, heavy, plain)
			seen, pages := map[int64]bool{}, 0
			for f := (job.Filter{Limit: 1000}); ; {
				page, err := view.Jobs(w.ctx(), w.Store, f)
				is.NoErr(err)
				pages++
				bytes := 0
				for _, j := range page.Jobs {
					is.True(!seen[j.ID]) // each job appears once
					seen[j.ID] = true
					bytes += len(j.Args) + len(j.Result) + len(j.Planned)
				}
				is.True(len(page.Jobs) > 0)
				is.True(bytes <= 8<<20+job.MaxArgsBytes) // no page exceeds the memory limit
				if f.Cursor = page.Cursor; f.Cursor == "" {
					break
				}
			}
			is.Equal(len(seen), len(ids)) // no job is missing
			is.True(pages > 1)
		})
	}
}

func TestLongPipelinePictureMemory(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t)
	podID := w.pod("a")
	plan, err := json.Marshal([]job.Step{{Kind: "k", Args: large}})
	is.NoErr(err)
	heavy := func(n *store.NewJob) { n.Args, n.Planned = large, plan }
	w.put(heavy)
	c := w.claimOne(podID)
	const steps = 12
	for range steps - 1 {
		next := w.new(then(c, heavy))[0]
		next.Starts = false
		_, ok := w.end(podID, endingWith(c, next))
		is.True(ok)
		c = w.claimOne(podID)
	}
	spine, err := view.Spine(w.ctx(), w.Store, c.PipelineID)
	is.NoErr(err)
	is.Equal(len(spine), steps) // all steps are included
	bytes := 0
	for _, j := range spine {
		is.Equal(j.Planned, json.RawMessage(nil)) // the remaining steps are returned with the pipeline instead
		bytes += len(j.Args) + len(j.Result) + len(j.Planned)
	}
	is.True(bytes <= 8<<20)
	is.True(spine[0].Args != nil && spine[steps-1].Args == nil) // arguments beyond the limit are omitted
}
