package runner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// waitOn returns a handler that blocks until wait is closed or its context is done.
func waitOn(wait <-chan struct{}) handler {
	return func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
		select {
		case <-wait:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// audited returns the actions in the audit log, oldest first.
func audited(t *testing.T, r *runner.Runner) (actions []string) {
	t.Helper()
	list, err := admin.AuditTrail(t.Context(), inside.Of(r).Store, admin.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		actions = append([]string{a.Actor + " " + a.Action + " " + a.Target}, actions...)
	}
	return actions
}

// happened counts the events with the given name.
func happened(t *testing.T, pool *pgxpool.Pool, event string) int {
	t.Helper()
	return queryOne[int](t, pool, `select count(*)::int from trapeze.job_event where event = $1`, event)
}

// With these options, pods send heartbeats and poll so rarely that a change can reach them only through a notification.
var rarely = runner.Options{Slots: 4, HeartbeatInterval: 20 * time.Second, LeaseDuration: time.Minute, PollInterval: time.Hour}

func TestCommandEffectOnAllPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	wait, open := latch(t)
	pods := startPods(t, url, 2, rarely, map[string]handler{"k": waitOn(wait)})
	operator := newRunner(t, pgtest.Connect(t, url), runner.Options{}, nil) // a program that runs no jobs
	for range 12 {
		enqueue(t, pods[0], rawArgs("k"))
	}
	pgtest.Wait(t, "both pods are full", func() bool { return running(t, pool) == 8 })

	changed, err := operator.Admin("ann").SetLane(t.Context(), "default", job.LaneChange{Enabled: new(bool), MaxAge: job.To(job.Seconds(time.Hour))})
	is.NoErr(err)
	is.Equal(changed.Changed, []string{"max_age_s", "enabled"})
	is.Equal([]int{changed.Running, changed.Waiting}, []int{8, 4})
	is.Equal(running(t, pool), 8) // running jobs continue
	again, err := operator.Admin("ann").SetLane(t.Context(), "default", job.LaneChange{MaxAge: job.To(job.Seconds(time.Hour))})
	is.NoErr(err)
	is.Equal(len(again.Changed), 0)
	is.Equal(audited(t, operator), []string{"ann lane.set lane default"}) // a command that changes nothing is not audited
	is.Equal(happened(t, pool, "lane.changed"), 1)
	shut := func() {
		for _, r := range pods {
			pgtest.Wait(t, "nothing starts on this pod", func() bool {
				s, err := r.Enqueue(t.Context(), rawArgs("k"))
				is.NoErr(err)
				return s.State == job.Pending
			})
		}
	}
	shut() // the slots were in use until now
	open()
	pgtest.Wait(t, "the jobs that ran have ended", func() bool { return running(t, pool) == 0 })
	shut()
	yes := true
	_, err = operator.Admin("ann").SetLane(t.Context(), "default", job.LaneChange{Enabled: &yes})
	is.NoErr(err)
	quiet(t, pool) // all pods resume immediately

	paused, err := operator.Admin("bob").Pause(t.Context())
	is.NoErr(err)
	is.True(paused)
	shut()
	is.Equal(happened(t, pool, "queue_state.paused"), 1)
	paused, err = operator.Admin("bob").Resume(t.Context())
	is.NoErr(err)
	is.True(paused)
	quiet(t, pool)
	is.Equal(len(audited(t, operator)), 4)
	checkHistory(t, pool, pods[0])
}

func TestLaneStaleLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, _ := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": waitOn(wait)})
	id := enqueueStarted(t, r, rawArgs("k"))
	_, err := r.Admin("ann").SetLane(t.Context(), "default", job.LaneChange{InactivityTimeout: job.To(job.Seconds(time.Second))})
	is.NoErr(err)
	j := waitEnded(t, r, id) // the job was already running when the limit was set
	is.Equal(reasonOf(j), job.ReasonInactive)
	is.Equal(reasonOf(waitEnded(t, r, enqueue(t, r, rawArgs("k")))), job.ReasonInactive) // the limit applies to the next job from the start
}

func TestDrainedLaneAcrossFreeze(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	wait, open := latch(t)
	pods := startPods(t, url, 2, rarely, map[string]handler{"next": succeed,
		"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if _, err := waitOn(wait)(ctx, j); err != nil {
				return nil, err
			}
			return runner.Then(rawArgs("next")), nil
		}})
	r := pods[0]
	first := enqueueStarted(t, r, rawArgs("k"))

	beat := func() time.Time {
		return queryOne[time.Time](t, pool, `select lease_until from trapeze.pods where id = $1`, pods[1].PodID())
	}
	before := beat()
	q, err := r.Admin("ann").DrainLane(t.Context(), "default", 200*time.Millisecond)
	is.NoErr(err)
	is.True(q.TimedOut && !q.Quiet) // the wait timed out
	is.Equal(q.Running, 1)          // the result reports the running job
	is.Equal(running(t, pool), 1)   // no job was stopped
	pgtest.Wait(t, "the heartbeat that the notification triggers on the other pod", func() bool { return beat().After(before) })
	var waits int64
	pgtest.Wait(t, "the other pod has applied the change", func() bool {
		s, err := pods[1].Enqueue(t.Context(), rawArgs("next"))
		is.NoErr(err)
		waits = s.ID
		return s.State == job.Pending
	})
	open()
	is.Equal(waitEnded(t, r, first).State, job.Succeeded)
	q, err = r.Admin("ann").DrainLane(t.Context(), "default", 20*time.Second)
	is.NoErr(err)
	is.True(q.Quiet && !q.Changed)
	is.Equal(get(t, r, waits).State, job.Pending)
	is.Equal(queryOne[string](t, pool, `select state from trapeze.job where parent_id = $1`, first), "pending") // the chain's next step waits too

	_, err = r.Admin("ann").SetLane(t.Context(), "other", job.LaneChange{})
	is.NoErr(err)
	q, err = pods[1].Admin("bob").Freeze(t.Context(), 20*time.Second)
	is.NoErr(err)
	is.True(q.Changed && q.Quiet)
	frozen, err := r.Enqueue(t.Context(), rawArgs("next"), runner.Lane("other"))
	is.NoErr(err)
	is.Equal(frozen.State, job.Pending) // the job does not start on insert
	now, err := r.Admin("").Status(t.Context())
	is.NoErr(err)
	is.True(now.Queue.Frozen && !now.Queue.Paused)
	is.Equal([]string{now.Queue.Freeze.Actor, now.Lanes[0].Drain.Actor}, []string{"bob", "ann"})
	unfrozen, err := r.Admin("bob").Unfreeze(t.Context())
	is.NoErr(err)
	is.True(unfrozen)
	is.Equal(waitEnded(t, r, frozen.ID).State, job.Succeeded)
	is.Equal(get(t, r, waits).State, job.Pending) // the lane that had already been drained stays drained

	resumed, err := pods[1].Admin("ann").UndrainLane(t.Context(), "default")
	is.NoErr(err)
	is.True(resumed)
	quiet(t, pool)
	is.Equal(audited(t, r), []string{"ann lane.drain lane default", "ann lane.set lane other", "bob queue_state.freeze queue_state", "bob queue_state.unfreeze queue_state", "ann lane.undrain lane default"})
	is.Equal([]int{happened(t, pool, "lane.drained"), happened(t, pool, "lane.undrained"), happened(t, pool, "queue_state.frozen"), happened(t, pool, "queue_state.unfrozen")}, []int{1, 1, 1, 1})
	_, err = r.Admin("ann").DrainLane(t.Context(), "nowhere", 0)
	is.True(errors.Is(err, job.ErrUnknownLane))
	checkHistory(t, pool, r)
}

func TestChainsOfDrainedPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	wait, open := latch(t)
	kinds := map[string]handler{"next": succeed, "k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		if _, err := waitOn(wait)(ctx, j); err != nil {
			return nil, err
		}
		return runner.Then(rawArgs("next")), nil
	}}
	// The other pod starts later. Otherwise, it could claim a job that is submitted while a claim has reserved all slots of the first pod.
	pods := startPods(t, url, 1, rarely, kinds)
	var chains []int64
	for range 3 {
		chains = append(chains, enqueueStarted(t, pods[0], rawArgs("k")))
	}
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.live where pod = $1`, pods[0].PodID()), 3)
	other := rarely
	other.PodName = "pod-1"
	pods = append(pods, start(t, pgtest.Connect(t, url), other, kinds))
	pgtest.Wait(t, "the other pod is ready", func() bool { ready, _ := pods[1].Ready(); return ready })

	q, err := pods[1].Admin("ann").DrainPod(t.Context(), "pod-0", 0)
	is.NoErr(err)
	is.Equal(q, job.DrainResult{Changed: true, Running: 3})
	pgtest.Wait(t, "the pod reports that it is drained", func() bool {
		ready, reasons := pods[0].Ready()
		return !ready && fmt.Sprint(reasons) == "["+runner.ReasonDrained+"]"
	})
	open()
	quiet(t, pool)
	for _, id := range chains {
		is.Equal(*get(t, pods[0], id).Pod, pods[0].PodID())                                                                // the drained pod finished its running jobs
		is.Equal(queryOne[string](t, pool, `select pod::text from trapeze.job where parent_id = $1`, id), pods[1].PodID()) // the other pod ran the next step
	}
	for range 5 {
		is.Equal(*waitEnded(t, pods[0], enqueue(t, pods[0], rawArgs("next"))).Pod, pods[1].PodID()) // the other pod also runs jobs submitted on the drained pod
	}
	q, err = pods[1].Admin("ann").DrainPod(t.Context(), pods[0].PodID(), 20*time.Second) // drains the same pod again, by its pod id
	is.NoErr(err)
	is.Equal(q, job.DrainResult{Quiet: true})
	pod := queryOne[bool](t, pool, `select draining from trapeze.pods where id = $1`, pods[0].PodID())
	is.True(!pod) // the pod is not shutting down

	resumed, err := pods[1].Admin("ann").UndrainPod(t.Context(), "pod-0")
	is.NoErr(err)
	is.True(resumed)
	pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := pods[0].Ready(); return ready })
	is.Equal([]int{happened(t, pool, "pod.drained"), happened(t, pool, "pod.undrained")}, []int{1, 1})
	_, err = pods[1].Admin("ann").DrainPod(t.Context(), "nobody", 0)
	is.True(errors.Is(err, job.ErrUnknownPod))
	checkHistory(t, pool, pods[0])
}

func TestDrainedPodRestartedUnderName(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	first := newRunner(t, pool, runner.Options{PodName: "web-1"}, map[string]handler{"k": succeed})
	stop := run(t, first)
	_, err := first.Admin("ann").DrainPod(t.Context(), "web-1", 0)
	is.NoErr(err)
	stop()
	second := start(t, pool, runner.Options{PodName: "web-1"}, map[string]handler{"k": succeed})
	pgtest.Wait(t, "the pod is registered", func() bool { _, reasons := second.Ready(); return fmt.Sprint(reasons) == "["+runner.ReasonDrained+"]" })
	id := enqueue(t, second, rawArgs("k"))
	other := start(t, pool, runner.Options{PodName: "web-2"}, map[string]handler{"k": succeed})
	is.Equal(*waitEnded(t, other, id).Pod, other.PodID())
	_, err = other.Admin("ann").UndrainPod(t.Context(), "web-1")
	is.NoErr(err)
	pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := second.Ready(); return ready })
}

// A pod loses its lease while it is drained, and is resumed before it registers again. The settings that it received last must not keep it
// drained.
func TestDrainedPodResumedDuringLapse(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	drained := func(r *runner.Runner) bool {
		_, reasons := r.Ready()
		return fmt.Sprint(reasons) == "["+runner.ReasonDrained+"]"
	}
	first, second := start(t, pool, named("web"), map[string]handler{"k": succeed}), start(t, pool, named("web"), map[string]handler{"k": succeed})
	for _, r := range []*runner.Runner{first, second} {
		_, err := first.Admin("ann").DrainPod(t.Context(), r.PodID(), 0)
		is.NoErr(err)
		pgtest.Wait(t, "the pod has applied the change", func() bool { return drained(r) })
	}
	podIDs := [2]string{first.PodID(), second.PodID()}
	exec(t, pool, `update trapeze.pods set closed_at = now(), closed = 'lapsed', drained = id <> $1`, podIDs[0])
	pgtest.Wait(t, "both pods have registered again", func() bool {
		return first.PodID() != podIDs[0] && second.PodID() != podIDs[1] && queryOne[int](t, pool, `select count(*)::int from trapeze.pods where closed_at is null`) == 2
	})
	pgtest.Wait(t, "the resumed pod is ready", func() bool { ready, _ := first.Ready(); return ready })
	pgtest.Wait(t, "the other pod with this name is not ready", func() bool { return drained(second) })
}

func TestSubmissionRightAfterPause(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), named("a"), map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) { return nil, nil }})
	for range 10 {
		_, err := r.Admin("ann").Pause(t.Context())
		is.NoErr(err)
		s, err := r.Enqueue(t.Context(), rawArgs("k"))
		is.NoErr(err)
		is.Equal(s.State, job.Pending) // the pod has applied the pause by the time the call returns
		_, err = r.Admin("ann").Resume(t.Context())
		is.NoErr(err)
		_, err = runner.Result[any](t.Context(), r, s.ID)
		is.NoErr(err)
	}
}
