package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

// collected returns a pod's metrics. The keys have the form name/label/label, where name lacks the common prefix trapeze_.
func collected(t *testing.T, r *runner.Runner) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	podtest.Scraped(t, r, func(name string, labels []string, value float64) {
		all[strings.Join(append([]string{strings.TrimPrefix(name, "trapeze_")}, labels...), "/")] = value
	})
	return all
}

func TestRemoteWorkerSlotMetrics(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	pgtest.Exec(t, pool, `insert into trapeze.lanes (name, slots) values ('narrow', 4)`)
	r := podtest.Start(t, pool, runner.Options{Slots: 2}, noKinds)
	w := newFar()
	w.connect(t, r, 3, "far")
	w.keepBeating(t, r)
	foreign(t, r, podtest.RawArgs("far"), runner.Lane("narrow"))
	w.takes(t, r)
	var now map[string]float64
	pgtest.Wait(t, "one slot is used, and none is reserved by a claim that is under way", func() bool {
		now = collected(t, r)
		return now["lane_slots/narrow/used"] == 1
	})
	is.Equal(now["lane_slots/narrow/limit"], 4.0)  // five slots, capped at the lane's limit
	is.Equal(now["lane_slots/default/limit"], 5.0) // two on the pod and three on the worker
}

func TestRemoteWorkerTrafficMetrics(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	told := make(chan job.End, 10)
	r := podtest.Start(t, pool, runner.Options{OnEnd: func(_ context.Context, e job.End) { told <- e }}, noKinds)
	is.Equal(collected(t, r)["remote_jobs_returned_total/unacknowledged"], 0.0) // the series exists from the start
	w := newFar()
	w.connect(t, r, 1, "far")
	is.Equal(collected(t, r)["remote_workers"], 1.0)
	is.Equal(collected(t, r)["remote_streams_total"], 1.0)
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	pgtest.Wait(t, "the pod knows that its send succeeded", func() bool { return collected(t, r)["remote_jobs_sent_total"] == 1 })
	_, err := w.reports(t, r, a, runner.Done(1), nil)
	is.NoErr(err)
	_, err = w.reports(t, r, a, runner.Done(1), nil)
	is.NoErr(err)
	_, err = w.reports(t, r, a, runner.Done(2), nil)
	is.True(errors.Is(err, job.ErrLeaseLost))
	for _, status := range []string{"accepted", "duplicate", "stale"} {
		is.Equal(collected(t, r)["remote_reports_total/"+status], 1.0)
	}
	e := <-told
	is.Equal([]any{e.ID, e.Kind, e.State}, []any{a.ID, "far", job.Succeeded})
	is.Equal(collected(t, r)["jobs_finished_total//far/succeeded"], 1.0) // a job that a remote worker runs counts toward its pod
	is.Equal(collected(t, r)["claims_total"], 1.0)
	is.Equal(len(told), 0)

	foreign(t, r, podtest.RawArgs("far"))
	<-w.sent // received but never listed
	pgtest.Wait(t, "the job was returned", func() bool { return collected(t, r)["remote_jobs_returned_total/unacknowledged"] == 1 })
	pgtest.Wait(t, "the stream was closed", func() bool { return collected(t, r)["remote_workers"] == 0 })
}

func TestWorkerLeavesThroughOtherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := podtest.Start(t, pool, often, noKinds), podtest.Start(t, pool, often, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	_, err := hostOf(second).Heartbeat(t.Context(), w.id, owner, host.Beat{Leaving: true})
	is.NoErr(err)
	<-w.session.Over()
	is.Equal(collected(t, first)["leases_lost_total"], 0.0)
}
