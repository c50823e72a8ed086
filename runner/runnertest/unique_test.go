package runnertest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

type edit struct{ Version int }

func (edit) Kind() string { return "edit" }

// edits returns a harness whose handler records the versions that it has seen.
func edits(t *testing.T) (*runnertest.Harness, *[]int) {
	var seen []int
	h := runnertest.New(t, effects(t), runner.Options{}, func(r *runner.Runner) {
		runner.Handle(r, func(_ context.Context, j *runner.Job[edit]) (*runner.Outcome, error) {
			seen = append(seen, j.Args.Version)
			return nil, nil
		})
	})
	return h, &seen
}

func TestHarnessDebounce(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h, seen := edits(t)
	save := func(version int, wants runner.Submitted) {
		t.Helper()
		s, err := h.Runner().Enqueue(t.Context(), edit{version}, runner.Unique("doc", runner.WhilePending).Debounce(10*time.Second, time.Minute))
		is.NoErr(err)
		is.Equal(s.Duplicate, wants.Duplicate)
		is.Equal(s.Replaced, wants.Replaced)
	}
	save(1, runner.Submitted{})
	for version := 2; version <= 7; version++ {
		h.Advance(9 * time.Second)
		h.RunUntilIdle()
		save(version, runner.Submitted{Duplicate: true, Replaced: true}) // each one moves the job back
	}
	is.Equal(len(*seen), 0)
	h.Advance(6 * time.Second) // 60 s after the first submission, 6 s after the last one
	h.RunUntilIdle()
	is.Equal(*seen, []int{7})
	save(8, runner.Submitted{})
	h.Advance(10 * time.Second)
	h.RunUntilIdle()
	is.Equal(*seen, []int{7, 8})
}

func TestHarnessThrottle(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h, seen := edits(t)
	for n := range 13 { // a submission every 3 seconds, at most one run in ten seconds
		_, err := h.Runner().Enqueue(t.Context(), edit{n}, runner.Unique("doc", runner.WhilePending).Throttle(10*time.Second))
		is.NoErr(err)
		h.RunUntilIdle()
		h.Advance(3 * time.Second)
	}
	h.Advance(10 * time.Second)
	h.RunUntilIdle()
	is.Equal((*seen)[0], 0) // at once
	is.True(len(*seen) >= 4 && len(*seen) <= 6)
	is.Equal((*seen)[len(*seen)-1], 12) // the last submission is not lost
	is.True(slices.IsSorted(*seen))
}
