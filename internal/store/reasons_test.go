package store_test

import (
	"slices"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// seedReasons adds reasons, classes and codes to a history, and inserts open jobs with reasons.
func (w *world) seedReasons() {
	w.t.Helper()
	w.seedEnded(3000, 20)
	w.exec(`update trapeze.done set reason = case when id % 3 = 0 then 'timeout' else 'error' end,
		error_class = case id % 3 when 0 then 'timeout' when 1 then 'database' else 'panic' end,
		error_code = case when id % 3 = 1 then case when id % 2 = 0 then '23505' else '40001' end end where state = 'failed'`)
	w.exec(`update trapeze.done set reason = case when id % 80 = 0 then 'expired' else 'cancelled' end where state = 'cancelled'`)
	w.exec(`insert into trapeze.jobs (id, kind, lane, args, pipeline_id) select g, 'k0', 'default', '{}', g from generate_series(10001, 10006) g`)
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
		select g, case g when 10001 then 'retry' when 10002 then 'key' else 'scheduled' end, now(), 1, 0, 'default', 'k0', '' from generate_series(10001, 10003) g`)
	w.exec(`insert into trapeze.live (id, ready_at, event_no, priority, state, pod, cancel_requested, lane, kind, subject)
		select g, now(), 1, 0, 'running', gen_random_uuid(), g = 10004, 'default', 'k0', '' from generate_series(10004, 10006) g`)
}

func TestReasonErrorListsMatchTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedReasons()
	w.SearchFor = 0 // a list that walks over all jobs would end each page early, but the lists tested here start from the few jobs that failed, were cancelled or are open
	for name, one := range map[string]struct {
		f     job.Filter
		where string
	}{
		"reason":           {job.Filter{Reason: job.ReasonTimeout}, `reason = 'timeout'`},
		"class":            {job.Filter{ErrorClass: job.ClassPanic}, `error_class = 'panic'`},
		"code":             {job.Filter{ErrorCode: "40001"}, `error_code = '40001'`},
		"all three":        {job.Filter{Reason: job.ReasonError, ErrorClass: job.ClassDatabase, ErrorCode: "40001"}, `error_code = '40001'`},
		"none":             {job.Filter{Reason: job.ReasonTimeout, ErrorClass: job.ClassPanic}, `false`},
		"kind":             {job.Filter{ErrorClass: job.ClassPanic, Kind: "k1"}, `error_class = 'panic' and kind = 'k1'`},
		"owner":            {job.Filter{Reason: job.ReasonExpired, Owner: "ana"}, `reason = 'expired' and submitter = 'ana'`},
		"expired":          {job.Filter{Reason: job.ReasonExpired}, `reason = 'expired'`},
		"state":            {job.Filter{ErrorClass: job.ClassPanic, States: []job.State{job.Cancelled}}, `false`},
		"pipeline":         {job.Filter{Pipeline: 20, Reason: job.ReasonError}, `pipeline_id = 20 and reason = 'error'`},
		"another pipeline": {job.Filter{Pipeline: 20, ErrorClass: job.ClassPanic}, `pipeline_id = 20 and error_class = 'panic'`},
		"retry":            {job.Filter{Reason: job.ReasonRetry}, `reason = 'retry'`},
		"key":              {job.Filter{Reason: job.ReasonKey}, `reason = 'key'`},
		"cancel requested": {job.Filter{Reason: job.ReasonCancelRequested}, `reason = 'cancel_requested'`},
	} {
		one.f.Limit = 7
		got, early := w.paged(one.f)
		if want := w.truth(one.where); !slices.Equal(got, want) || early > 0 {
			t.Errorf("%s: %v, want %v; %d pages ended early", name, got, want, early)
		}
	}
	for _, f := range []job.Filter{{Reason: job.ReasonTimeout}, {ErrorClass: job.ClassDatabase}, {ErrorCode: "40001"}, {Reason: job.ReasonRetry}, {Reason: job.ReasonKey}} {
		f.Limit = 40
		begun, _ := w.paged(f)
		f.States = job.States() // filtering by all states requires a walk over all jobs
		if walked, _ := w.paged(f); !slices.Equal(walked, begun) || len(begun) == 0 {
			t.Errorf("%+v: %v, want %v", f, walked, begun)
		}
	}
}

func TestBulkCommandsByReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedReasons()
	match := func(f job.Filter, ended bool) int {
		ids, err := admin.Match(w.ctx(), w.Store, f, ended, 0, 1000)
		w.is.NoErr(err)
		return len(ids)
	}
	failed, cancelled := []job.State{job.Failed}, []job.State{job.Cancelled}
	w.is.Equal(match(job.Filter{States: failed, Reason: job.ReasonTimeout}, true), len(w.truth(`reason = 'timeout'`)))
	w.is.Equal(match(job.Filter{States: failed, ErrorClass: job.ClassDatabase}, true), len(w.truth(`error_class = 'database'`)))
	w.is.Equal(match(job.Filter{States: failed, ErrorCode: "40001"}, true), len(w.truth(`error_code = '40001'`)))
	w.is.Equal(match(job.Filter{States: cancelled, Reason: job.ReasonExpired}, true), len(w.truth(`reason = 'expired'`)))
	w.is.Equal(match(job.Filter{}, false), 5) // all open jobs match except the one that already has a cancel request
	w.is.Equal(match(job.Filter{Reason: job.ReasonRetry}, false), 1)
	w.is.Equal(match(job.Filter{Reason: job.ReasonKey}, false), 1)
	w.is.Equal(match(job.Filter{Reason: job.ReasonTimeout}, false), 0) // only finished jobs have this reason
	w.is.Equal(match(job.Filter{ErrorClass: job.ClassPanic}, false), 0)
	w.is.Equal(match(job.Filter{ErrorCode: "40001"}, false), 0)
}

func TestEndByPreviousVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(about(""))
	c := w.claimOne(podID)
	w.exec(`with gone as (
			delete from trapeze.live where id = $1 returning *
		), ended as (
			insert into trapeze.done (id, state, outcome, reason, error, fence, pod, event_no, epoch, attempt, crashes, priority, lane, started_at,
				xid, claim_xid)
			select id, 'failed', 'error', 'error', 'boom', fence, pod, event_no + 1, epoch, attempt, crashes, priority, lane, started_at,
				pg_current_xact_id(), claim_xid from gone
		)
		insert into trapeze.job_events (job, event_no, fence, pod, from_state, to_state, event, level, message)
		select id, event_no + 1, fence, pod, 'running', 'failed', 'job.failed', 'error', 'boom' from gone`, c.ID)
	j, err := view.Job(w.ctx(), w.Store, c.ID)
	w.is.NoErr(err)
	w.is.Equal(j.State, job.Failed)
	w.is.True(j.ErrorClass == nil && j.ErrorCode == nil)
}
