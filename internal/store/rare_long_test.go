//go:build long

package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestRarePipelineList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(3000, 20)
	w.exec(`with gone as (delete from trapeze.done where id in (select id from trapeze.jobs where step = 1 and id % 100 = 11) returning id, fence)
		insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject, fence) select id, now(), 3, 0, 'pending', 'default', 'k', '', fence from gone`)
	all := func(f view.PipelineFilter) (ids []int64) {
		for {
			page, err := view.Pipelines(w.ctx(), w.Store, f)
			w.is.NoErr(err)
			for _, p := range page.Pipelines {
				ids = append(ids, p.ID)
			}
			if f.Cursor = page.Cursor; f.Cursor == "" {
				return ids
			}
		}
	}
	rare := []job.Status{job.PipelineFailed, job.PipelineCancelled, job.PipelineRunning}
	for name, f := range map[string]view.PipelineFilter{
		"failed": {Statuses: rare[:1]}, "cancelled": {Statuses: rare[1:2]}, "running": {Statuses: rare[2:]}, "all": {Statuses: rare},
		"name": {Statuses: rare, Name: "p1"}, "since": {Statuses: rare, Since: time.Now().Add(-50 * time.Hour)},
	} {
		f.Limit = 7
		begun := all(f)
		f.Statuses = append(slices.Clone(f.Statuses), job.PipelinePartial) // there is no partial pipeline, but one could be anywhere
		if walked := all(f); !slices.Equal(begun, walked) {
			t.Errorf("%s: %v, want %v", name, begun, walked)
		}
		w.is.Equal(len(begun) == 0, name == "cancelled") // the ids of second steps are odd
	}
}
