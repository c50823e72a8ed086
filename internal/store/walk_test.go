package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// paged lists the jobs that match a filter, page by page. early is the number of pages that are not full even though more jobs follow.
func (w *world) paged(f job.Filter) (ids []int64, early int) {
	w.t.Helper()
	for {
		page, err := view.Jobs(w.ctx(), w.Store, f)
		w.is.NoErr(err)
		for _, j := range page.Jobs {
			ids = append(ids, j.ID)
		}
		if !page.Searched.IsZero() {
			early++
			w.is.True(page.Cursor != "" && len(page.Jobs) < f.Limit) // the page has a cursor to continue from
		}
		if f.Cursor = page.Cursor; f.Cursor == "" {
			w.is.True(page.Searched.IsZero()) // the last page covers all jobs
			return ids, early
		}
	}
}

// truth lists the jobs that meet a condition, using the job view.
func (w *world) truth(where string) []int64 {
	w.t.Helper()
	ids, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[int64], `select id from trapeze.job where `+where+` order by created_at desc, id desc`)
	w.is.NoErr(err)
	return ids
}

func TestJobsByPipelineOrParent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(3000, 20)
	w.SearchFor = 0 // a list that walks over all jobs would end early
	for name, one := range map[string]struct {
		f     job.Filter
		where string
	}{
		"pipeline":       {job.Filter{Pipeline: 2500}, `pipeline_id = 2500`},
		"lone job":       {job.Filter{Pipeline: 2502}, `pipeline_id = 2502`},
		"parent":         {job.Filter{Parent: 2500}, `parent_id = 2500`},
		"both":           {job.Filter{Pipeline: 2500, Parent: 2500}, `parent_id = 2500`},
		"another parent": {job.Filter{Pipeline: 2500, Parent: 2490}, `false`},
		"state":          {job.Filter{Pipeline: 2500, States: []job.State{job.Succeeded}}, `pipeline_id = 2500 and state = 'succeeded'`},
		"kind":           {job.Filter{Pipeline: 2500, Kind: "other"}, `false`},
		"owner":          {job.Filter{Pipeline: 2500, Owner: "ana"}, `pipeline_id = 2500 and submitter = 'ana'`},
	} {
		one.f.Limit = 1
		got, early := w.paged(one.f)
		if want := w.truth(one.where); !slices.Equal(got, want) || early > 0 {
			t.Errorf("%s: %v, want %v; %d pages ended early", name, got, want, early)
		}
	}
}

func TestPipelinePageScanPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(600, 20)
	w.exec(`insert into trapeze.pipelines (id, name, created_at)
		select j.id, case when j.id % 140 = 9 then 'seldom' else 'often' end, j.created_at + interval '1 second' from trapeze.jobs j
		where not exists (select from trapeze.pipelines p where p.id = j.id) and j.step = 0`)
	w.exec(`delete from trapeze.pipelines where id = 0`) // the pipeline belongs to no job
	w.exec(`update trapeze.jobs set submitter = 'ana' where id % 2 = 1`)
	for name, one := range map[string]struct {
		f     view.PipelineFilter
		where string
	}{
		"name":      {view.PipelineFilter{Name: "seldom"}, `p.name = 'seldom'`},
		"nothing":   {view.PipelineFilter{Name: "none"}, `false`},
		"status":    {view.PipelineFilter{Name: "seldom", Statuses: []job.Status{job.PipelineSucceeded}}, `p.name = 'seldom' and p.status = 'succeeded'`},
		"owner":     {view.PipelineFilter{Name: "seldom", Owner: "ana"}, `p.name = 'seldom' and j.submitter = 'ana'`},
		"all":       {view.PipelineFilter{Limit: 40}, `true`},
		"all, ours": {view.PipelineFilter{Owner: "ana", Limit: 20}, `j.submitter = 'ana'`},
	} {
		one.f.Limit = max(one.f.Limit, 2)
		want, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[int64], `select p.id from trapeze.pipeline p join trapeze.jobs j on j.id = p.id where `+one.where+`
			order by j.created_at desc, j.id desc`)
		w.is.NoErr(err)
		for _, lookFor := range []time.Duration{0, time.Hour} {
			w.SearchFor = lookFor
			var got []int64
			early := 0
			for f := one.f; ; {
				page, err := view.Pipelines(w.ctx(), w.Store, f)
				w.is.NoErr(err)
				for _, p := range page.Pipelines {
					got = append(got, p.ID)
				}
				if !page.Searched.IsZero() {
					early++
					w.is.True(page.Cursor != "" && len(page.Pipelines) < f.Limit) // the page has a cursor to continue from
				}
				if f.Cursor = page.Cursor; f.Cursor == "" {
					w.is.True(page.Searched.IsZero()) // the last page covers all pipelines
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, looking for %s: %v, want %v", name, lookFor, got, want)
			}
			w.is.Equal(early > 0, lookFor == 0 && one.f.Name != "") // a page ends early only if its search time is limited
		}
	}
}
