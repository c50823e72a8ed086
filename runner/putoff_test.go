package runner_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestSnoozeDelaysWithBackoff(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		snooze func() *runner.Outcome
		want   []int // pairs of a snooze count and a wait in ms
	}{
		"plain":        {func() *runner.Outcome { return runner.Snooze(10*time.Millisecond, "GPU busy") }, []int{1, 10, 2, 10, 3, 10, 4, 10}},
		"with backoff": {func() *runner.Outcome { return runner.Snooze(10*time.Millisecond, "GPU busy").WithBackoff() }, []int{1, 10, 2, 20, 3, 40, 4, 80}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			snoozes(t, one.snooze, one.want)
		})
	}
}

func snoozes(t *testing.T, snooze func() *runner.Outcome, want []int) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	var counts []int
	r := start(t, pool, runner.Options{}, map[string]handler{"gpu": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if counts = append(counts, j.Snoozes()); j.Snoozes() < 4 {
			return snooze(), nil
		}
		return runner.Done(j.Attempt()), nil
	}})
	j := waitEnded(t, r, enqueue(t, r, rawArgs("gpu")))
	is.Equal(string(j.Result), "1") // still the first attempt
	is.Equal(counts, []int{0, 1, 2, 3, 4})
	list, err := view.JobEvents(t.Context(), inside.Of(r).Store, j.ID, 0, 100)
	is.NoErr(err)
	var waits []int
	for i, e := range list {
		if e.Event != "job.snoozed" {
			continue
		}
		var fields struct {
			Count   int
			DelayMS int `json:"delay_ms"`
		}
		is.NoErr(json.Unmarshal(e.Fields, &fields))
		waits = append(waits, fields.Count, fields.DelayMS)
		is.Equal(*e.Message, "GPU busy")
		after := list[i+1:]
		next := after[slices.IndexFunc(after, func(e job.Event) bool { return e.To == job.Running })]
		is.True(next.At.Sub(e.At) >= time.Duration(fields.DelayMS)*time.Millisecond) // the next run started after the wait
	}
	is.Equal(waits, want)
	checkHistory(t, pool, r)
}

func TestSnoozedJobSlotAndRestart(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var free atomic.Bool
	handlers := map[string]handler{"other": succeed, "gpu": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		if !free.Load() {
			return runner.Snooze(time.Hour, "GPU busy"), nil
		}
		return runner.Done(j.Snoozes()), nil
	}}
	a := newRunner(t, pool, runner.Options{Slots: 1}, handlers)
	stop := run(t, a)
	id := enqueue(t, a, rawArgs("gpu"), runner.Subject("s"))
	pgtest.Wait(t, "the job is snoozed", func() bool { return slices.Contains(eventsOf(t, a, id), "job.snoozed") })
	is.Equal(waitEnded(t, a, enqueue(t, a, rawArgs("other"), runner.Subject("s"))).State, job.Succeeded) // the only slot is free
	stop()
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live`), 0) // the pod no longer holds the job
	free.Store(true)
	exec(t, pool, `update trapeze.parked set run_after = now() where id = $1`, id)
	b := start(t, pool, runner.Options{}, handlers)
	j := waitEnded(t, b, id)
	is.Equal(string(j.Result), "1") // the snooze on the previous pod is counted
	checkHistory(t, pool, b)
}
