package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestOwnJobAndPipelinePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 12 {
		who := []string{"ana", "bob", ""}[i%3]
		name := fmt.Sprint("pipeline ", i)
		_, err := w.pool.Exec(w.ctx(), `with j as (
			insert into trapeze.jobs (id, kind, lane, args, pipeline_id, submitter, created_at)
			values ($1::bigint, 'k', 'default', '{}', $1, $2, now() - $1::int * interval '1 minute')
		), l as (
			insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject) values ($1, now(), 1, 0, 'pending', 'default', 'k', '')
		) insert into trapeze.pipelines (id, name) values ($1, $3)`, i+1, who, name)
		w.is.NoErr(err)
	}
	var jobs, pipelines []int64
	for f := (job.Filter{Owner: "ana", Limit: 3}); ; {
		page, err := view.Jobs(w.ctx(), w.Store, f)
		w.is.NoErr(err)
		for _, j := range page.Jobs {
			jobs = append(jobs, j.ID)
		}
		if f.Cursor = page.Cursor; f.Cursor == "" {
			break
		}
	}
	for f := (view.PipelineFilter{Owner: "ana", Limit: 3}); ; {
		page, err := view.Pipelines(w.ctx(), w.Store, f)
		w.is.NoErr(err)
		for _, pipeline := range page.Pipelines {
			pipelines = append(pipelines, pipeline.ID)
		}
		if f.Cursor = page.Cursor; f.Cursor == "" {
			break
		}
	}
	w.is.Equal(jobs, []int64{1, 4, 7, 10}) // only ana's jobs, newest first
	w.is.Equal(pipelines, jobs)            // each job is its own pipeline
	late, err := view.Pipelines(w.ctx(), w.Store, view.PipelineFilter{Owner: "ana", Since: time.Now().Add(-5 * time.Minute)})
	w.is.NoErr(err)
	w.is.Equal(len(late.Pipelines), 2) // pipelines are filtered by the submission times of their first jobs
	first, err := view.Pipelines(w.ctx(), w.Store, view.PipelineFilter{Owner: "ana", Limit: 1})
	w.is.NoErr(err)
	w.exec(`delete from trapeze.jobs where id = 1`)
	rest, err := view.Pipelines(w.ctx(), w.Store, view.PipelineFilter{Owner: "ana", Limit: 1, Cursor: first.Cursor})
	w.is.NoErr(err)
	w.is.Equal(rest.Pipelines[0].ID, int64(4)) // the job that the cursor points to was deleted, so the list continues from its submission time
	owner, err := view.Owner(w.ctx(), w.Store, 2)
	w.is.NoErr(err)
	w.is.Equal(owner, "bob")
	_, err = view.Owner(w.ctx(), w.Store, 99)
	w.is.True(errors.Is(err, job.ErrNotFound))
}
