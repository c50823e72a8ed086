package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Jobs of a subject run strictly in the order of their submission, although most of them fail at first, whichever way they are submitted.
func TestOrderedJobsOfSubject(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var mu sync.Mutex
	var began []string
	handle := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		mu.Lock()
		defer mu.Unlock()
		began = append(began, fmt.Sprintf("%s of %s", j.Args.JSON, j.Subject()))
		switch {
		case j.Attempt() <= 2:
			return nil, errors.New("boom")
		case j.Snoozes() == 0:
			return runner.Snooze(10*time.Millisecond, "not yet"), nil
		case j.Step() == 0:
			return runner.Then(runner.Raw{Name: "k", JSON: j.Args.JSON}), nil
		}
		return nil, nil
	}
	var pods []*runner.Runner
	for i := range 2 {
		r := newRunner(t, pool, runner.Options{PodName: fmt.Sprint("pod-", i), Slots: 6, PollInterval: seldom}, nil)
		runner.HandleRaw(r, "k", handle, runner.Retry(5, job.Backoff{Base: 10 * time.Millisecond, Cap: 20 * time.Millisecond}))
		run(t, r)
		pods = append(pods, r)
	}
	var ids []int64
	var want []string
	for i := range 12 {
		args := runner.Raw{Name: "k", JSON: json.RawMessage(fmt.Sprint(i))}
		options := []runner.EnqueueOption{runner.Subject(fmt.Sprint("s", i%2)), runner.Ordered()}
		if i%2 == 1 { // jobs of a subject with different keys may overtake each other
			options = append(options, runner.Key("tenant"))
		}
		switch by := pods[i%2]; i % 3 {
		case 0:
			ids = append(ids, enqueue(t, by, args, options...))
		case 1:
			made, err := by.EnqueueMany(t.Context(), []job.Args{args}, options...)
			is.NoErr(err)
			ids = append(ids, made...)
		default:
			is.NoErr(by.Tx(t.Context(), func(tx pgx.Tx) error {
				made, err := by.EnqueueTx(t.Context(), tx, args, options...)
				ids = append(ids, made.ID)
				return err
			}))
		}
		for range 8 { // two steps, each with two failures and a snooze
			want = append(want, fmt.Sprintf("%d of s%d", i, i%2))
		}
	}
	for _, id := range ids {
		is.Equal(waitPipeline(t, pool, id), "succeeded")
	}
	for _, subject := range []string{"s0", "s1"} {
		of := func(list []string) []string {
			return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s[len(s)-2:] != subject })
		}
		is.Equal(of(began), of(want))
	}
	checkHistory(t, pool, pods[0])
}

func TestOrderedWithoutSubject(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Unconnected(t), runner.Options{}, map[string]handler{"k": succeed})
	_, err := r.Enqueue(t.Context(), rawArgs("k"), runner.Ordered())
	is.True(errors.Is(err, job.ErrInvalid))
	is.Equal(err.Error(), "invalid request: ordered without a subject (kind k)")
}
