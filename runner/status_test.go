package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestStatusMatchesTables(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	exec(t, pool, `insert into trapeze.lanes (name, slots, inactivity_timeout_s, requires_approval) values ('narrow', 1, 500, false)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('n', 'narrow')`)
	wait, open := latch(t)
	handlers := map[string]handler{"n": waitOn(wait), "k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		j.Progress(3, 10)
		j.Message("at it")
		return waitOn(wait)(ctx, j)
	}}
	pods := startPods(t, url, 2, runner.Options{Slots: 3}, handlers)
	first := enqueueStarted(t, pods[0], rawArgs("k"), runner.Subject("s"), runner.Priority(7))
	for range 3 {
		enqueue(t, pods[1], rawArgs("n"))
	}
	pgtest.Wait(t, "the narrow lane is full, and progress is stored", func() bool {
		return running(t, pool) == 2 && queryOne[int](t, pool, `select count(*)::int from trapeze.job_progress where message is not null`) == 1
	})

	now, err := pods[1].Admin("").Status(t.Context())
	is.NoErr(err)
	is.Equal(now.Queue, job.QueueState{})
	is.Equal(len(now.Pods), 2)
	is.Equal([]int{now.Pods[0].Running + now.Pods[1].Running, now.Pods[0].Slots}, []int{2, 3})
	is.Equal(now.Lanes[0].Name, "default")
	narrow := now.Lanes[1]
	is.Equal([]int{narrow.Running, *narrow.Slots, narrow.Waiting}, []int{1, 1, 2})
	is.Equal(narrow.InactivityTimeout.Duration(), 500*time.Second)
	is.Equal(narrow.Kinds, []string{"n"})
	is.True(!narrow.Oldest.IsZero() && time.Since(*narrow.Oldest) < time.Minute)
	is.Equal(len(now.Running), 2)
	names := map[string]string{pods[0].PodID(): "pod-0", pods[1].PodID(): "pod-1"}
	for _, slot := range now.Running {
		j := get(t, pods[0], slot.Job)
		is.Equal(slot.PodID, *j.Pod)
		is.Equal([]any{slot.Lane, slot.Kind, slot.Fence, slot.Attempt}, []any{j.Lane, j.Kind, j.Fence, j.Attempt})
		is.True(j.StartedAt.Sub(slot.Since).Abs() < time.Second) // a claim may begin before the insert of the job that it finds
		if slot.Job == first {
			is.Equal([]any{slot.Pod, slot.Subject, slot.Priority}, []any{names[slot.PodID], "s", 7})
			is.Equal([]any{*slot.Progress.Done, *slot.Progress.Total, *slot.Progress.Message}, []any{int64(3), int64(10), "at it"})
		}
	}
	open()
	quiet(t, pool)
	now, err = pods[0].Admin("").Status(t.Context())
	is.NoErr(err)
	is.Equal(len(now.Running), 0)
	is.Equal(now.Lanes[1].Waiting, 0)
}
