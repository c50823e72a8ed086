package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/plantest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func (w *world) seedEnded(n, every int) {
	w.t.Helper()
	plantest.SeedEnded(w.t, w.pool, n, every)
}

func TestRareEndedJobList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(3000, 20)
	all := func(f job.Filter) (ids []int64) {
		for {
			page, err := view.Jobs(w.ctx(), w.Store, f)
			w.is.NoErr(err)
			for _, j := range page.Jobs {
				ids = append(ids, j.ID)
			}
			if f.Cursor = page.Cursor; f.Cursor == "" {
				return ids
			}
		}
	}
	ended := []job.State{job.Failed, job.Cancelled}
	for name, f := range map[string]job.Filter{
		"failed": {States: ended[:1]}, "cancelled": {States: ended[1:]}, "both": {States: ended}, "kind": {States: ended, Kind: "k1"},
		"lane": {States: ended, Lane: "nowhere"}, "owner": {States: ended, Owner: "ana"}, "pipeline": {States: ended, Pipeline: 20},
		"since": {States: ended, Since: time.Now().Add(-50 * time.Hour)}, "now": {States: ended, Since: time.Now()},
	} {
		f.Limit = 40
		begun := all(f)
		f.States = append(slices.Clone(f.States), job.Pending) // there is no pending job, but one could be anywhere
		if walked := all(f); !slices.Equal(begun, walked) {
			t.Errorf("%s: %v, want %v", name, begun, walked)
		}
		w.is.Equal(len(begun) == 0, name == "lane" || name == "now")
	}
}
