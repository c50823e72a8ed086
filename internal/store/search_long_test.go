//go:build long

package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestSearchMatchesTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedReasons()
	w.exec(`update trapeze.jobs set subject = 'Moon_' || id, args = json_build_object('user', json_build_object('id', id % 50), 'list', json_build_array('a', id % 2 = 0)) where id % 70 = 9`)
	w.exec(`update trapeze.jobs set created_at = (select max(created_at) from trapeze.jobs) where id between 100 and 300`)
	w.exec(`update trapeze.done set error = 'disk 100% full: ' || id where state in ('failed', 'cancelled') and id % 3 = 0`)
	for name, one := range map[string]struct {
		text  string
		f     job.Filter
		where string
		few   bool // the search reads only failed, cancelled and unfinished jobs, so no page ends early
	}{
		"text":               {"moon_", job.Filter{}, `subject like 'Moon%' or error ilike '%moon\_%'`, false},
		"error as text":      {"100% FULL", job.Filter{}, `error like 'disk%'`, false},
		"kind":               {"moon", job.Filter{Kind: "k1"}, `subject like 'Moon%' and kind = 'k1'`, false},
		"own":                {"moon", job.Filter{Owner: "ana"}, `subject like 'Moon%' and submitter = 'ana'`, false},
		"own error":          {"full", job.Filter{Owner: "ana"}, `error like 'disk%' and submitter = 'ana'`, false},
		"succeeded":          {"moon", job.Filter{States: []job.State{job.Succeeded, job.Failed}}, `subject like 'Moon%' and state in ('succeeded', 'failed')`, false},
		"since":              {"moon", job.Filter{Since: time.Now().Add(-50 * time.Hour)}, `subject like 'Moon%' and created_at >= now() - interval '50 hours'`, false},
		"nothing":            {"sun", job.Filter{}, `false`, false},
		"failed":             {"moon", job.Filter{States: []job.State{job.Failed}}, `subject like 'Moon%' and state = 'failed'`, true},
		"failed or open":     {"k", job.Filter{States: []job.State{job.Failed, job.Pending}}, `state in ('failed', 'pending') and (kind like 'k%' or submitter like '%k%')`, true},
		"error":              {"error=100%", job.Filter{}, `error like 'disk%'`, true},
		"error of a reason":  {"error=full", job.Filter{Reason: job.ReasonTimeout}, `error like 'disk%' and reason = 'timeout'`, true},
		"error of own":       {"error=full", job.Filter{Owner: "ana"}, `error like 'disk%' and submitter = 'ana'`, true},
		"args":               {"args.user.id=9", job.Filter{}, `args #>> '{user,id}' = '9' and state not in ('succeeded', 'cancelled')`, true},
		"args of a list":     {"args.list.1=true args.list.0=a", job.Filter{}, `args #>> '{list,1}' = 'true' and state not in ('succeeded', 'cancelled')`, true},
		"args of a lane":     {"args.list.0=a", job.Filter{Lane: "nowhere"}, `false`, true},
		"args and an error":  {"args.list.0=a error=full", job.Filter{States: []job.State{job.Failed}}, `args #>> '{list,0}' = 'a' and error like 'disk%' and state = 'failed'`, true},
		"args of a pipeline": {"args.list.0=a", job.Filter{Pipeline: 9}, `args #>> '{list,0}' = 'a' and pipeline_id = 9 and state not in ('succeeded', 'cancelled')`, true},
	} {
		one.f.Limit = 2
		want := w.truth(one.where)
		for _, lookFor := range []time.Duration{0, time.Hour} {
			w.SearchFor = lookFor
			got, early := w.searched(one.text, one.f)
			if !slices.Equal(got, want) {
				t.Errorf("%s, looking for %s: %v, want %v", name, lookFor, got, want)
			}
			if (early > 0) != (lookFor == 0 && !one.few) {
				t.Errorf("%s, looking for %s: %d pages ended early", name, lookFor, early)
			}
		}
	}
}

// If more than 10,000 errors contain the text, the search does not list their jobs in advance, but probes each job.
func TestSearchTextInManyErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const flood = 10_002
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id, created_at) select g, 'k', 'default', '{}', g, now() - g * interval '1 second' from generate_series(1, 10010) g`)
	w.exec(`insert into trapeze.done (id, state, outcome, reason, error, fence, event_no, epoch, attempt, crashes, priority, lane)
		select g, case when g % 2 = 0 then 'failed' else 'cancelled' end, 'error', 'error', case when g <= 10002 then 'the flood is here' else 'dry' end, 1, 2, 1, 1, 0, 0, 'default'
		from generate_series(1, 10010) g`)
	w.SearchFor = time.Hour
	got, _ := w.searched("FLOOD", job.Filter{Limit: 1000})
	w.is.Equal(len(got), flood)
	w.is.Equal([]int64{got[0], got[flood-1]}, []int64{1, flood}) // newest first
}

// searched lists the jobs that match a filter and a search, page by page, like paged.
func (w *world) searched(text string, f job.Filter) (ids []int64, early int) {
	w.t.Helper()
	q, err := view.ParseSearch(text)
	w.is.NoErr(err)
	q, f, err = q.For(f, true, "")
	w.is.NoErr(err)
	for {
		page, err := view.SearchJobs(w.ctx(), w.Store, f, q)
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
