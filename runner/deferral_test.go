package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// deferring returns a runner whose jobs of kind "deferred" wait for parts. The handler sends each job's token on the returned channel.
func deferring(t *testing.T, parts int) (r *runner.Runner, tokens <-chan string) {
	c := make(chan string, 10)
	return start(t, pgtest.Pool(t), named("a"), map[string]handler{
		"deferred": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			c <- token
			return runner.Deferred(parts).Join(rawArgs("join")), err
		},
		"join": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			seen := ""
			for b, err := range j.Branches(ctx) {
				if err != nil {
					return nil, err
				}
				var n int
				_ = b.Result(&n)
				seen += fmt.Sprintf("%s %s %d %s;", b.Part, b.State, n, b.Error)
			}
			return runner.Done(seen), nil
		},
	}), c
}

// The parent ends exactly once, after its last part, even if parts are completed concurrently.
func TestDeferredJobLastBranch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const parts = 20
	r, tokens := deferring(t, parts)
	id := enqueue(t, r, rawArgs("deferred"))
	token := <-tokens
	inState(t, r, id, job.Waiting)
	complete := func(from, to int) {
		var all sync.WaitGroup
		for i := from; i < to; i++ {
			for range 2 { // a part that is completed twice concurrently counts only once
				all.Go(func() {
					err := r.Complete(t.Context(), id, token, i, runner.Part(fmt.Sprintf("%02d", i)))
					if err != nil && !errors.Is(err, job.ErrAlreadyTerminal) {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
	}
	complete(0, parts-1)
	waiting := get(t, r, id)
	is.Equal(waiting.State, job.Waiting)
	is.Equal(*waiting.Progress.Done, int64(parts-1))
	is.Equal(*waiting.Progress.Total, int64(parts))
	complete(parts-1, parts)
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	pool := inside.Of(r).Store.Pool()
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where kind = 'join'`), 1)
	is.NoErr(r.Complete(t.Context(), id, token, 5, runner.Part("05")))                                            // this part is already complete
	is.True(errors.Is(r.Complete(t.Context(), id, token, 5, runner.Part("99")), job.ErrAlreadyTerminal))          // more parts than the job has
	is.True(errors.Is(r.Complete(t.Context(), id, "guess", 5, runner.Part("05")), job.ErrWrongToken))             // wrong token
	is.True(errors.Is(r.Complete(t.Context(), id+1, token, 5), job.ErrNotFound))                                  // a job without a token
	is.True(errors.Is(r.Complete(t.Context(), id, token, 5, runner.Part("a\x00b")), job.ErrInvalid))              // not valid text
	is.True(errors.Is(r.Complete(t.Context(), id, token, make(chan int), runner.Part("06")), job.ErrInvalidArgs)) // not valid JSON
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.parts where id = $1`, id), parts)
	checkHistory(t, pool, r)
}

// A failed part counts as complete, but if all parts fail, the job fails.
func TestPartsMayFail(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, tokens := deferring(t, 2)
	some := enqueue(t, r, rawArgs("deferred"))
	token := <-tokens
	is.NoErr(r.Complete(t.Context(), some, token, nil, runner.Part("a"), runner.PartFailed(errors.New("no disk"))))
	is.NoErr(r.Complete(t.Context(), some, token, 7, runner.Part("b")))
	j := waitEnded(t, r, some)
	is.Equal(j.State, job.Succeeded)
	is.Equal(*j.Outcome, job.Warning)
	is.Equal(message(j), "1 of 2 children failed")
	pool := inside.Of(r).Store.Pool()
	is.Equal(waitPipeline(t, pool, some), "partial")
	is.Equal(queryOne[string](t, pool, `select result #>> '{}' from trapeze.job where kind = 'join'`), "a failed 0 failed: no disk;b succeeded 7 ;")

	all := enqueue(t, r, rawArgs("deferred"))
	token = <-tokens
	for _, part := range []string{"a", "b"} {
		is.NoErr(r.Complete(t.Context(), all, token, nil, runner.Part(part), runner.PartFailed(errors.New("no disk"))))
	}
	is.Equal(waitEnded(t, r, all).State, job.Failed)
	is.Equal(waitPipeline(t, pool, all), "failed")
	checkHistory(t, pool, r)
}

// A part may be completed before the handler has returned Deferred.
func TestPartCompletedBeforeDeferral(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var r *runner.Runner
	r = start(t, pool, named("a"), map[string]handler{"deferred": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		token, err := j.Token(ctx)
		if err != nil {
			return nil, err
		}
		again, err := j.Token(ctx)
		if err != nil || again != token {
			return nil, fmt.Errorf("the token changed (%v)", err)
		}
		return runner.Deferred(1), r.Complete(ctx, j.ID(), token, "early")
	}})
	id := enqueue(t, r, rawArgs("deferred"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)

	cancelled, tokens := deferring(t, 1)
	id = enqueue(t, cancelled, rawArgs("deferred"))
	inState(t, cancelled, id, job.Waiting)
	_, err := cancelled.Admin("me").Cancel(t.Context(), id)
	is.NoErr(err)
	is.True(errors.Is(cancelled.Complete(t.Context(), id, <-tokens, 1), job.ErrAlreadyTerminal)) // no job is waiting for this part anymore
	checkHistory(t, pool, r)
}

func TestDeferredWithoutToken(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), named("a"), map[string]handler{
		"never": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Deferred(1).Join(rawArgs("join")), nil
		},
		"earlier": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				_, err := j.Token(ctx)
				return nil, errors.Join(errors.New("no"), err)
			}
			return runner.Deferred(1), nil
		},
		"join": succeed,
	})
	twice := []runner.EnqueueOption{runner.MaxAttempts(2)}
	never, earlier := enqueue(t, r, rawArgs("never"), twice...), enqueue(t, r, rawArgs("earlier"), twice...)
	failed := waitEnded(t, r, never)
	is.Equal(failed.State, job.Failed)
	is.Equal(*failed.Reason, job.ReasonAttemptsExhausted)
	is.True(strings.HasPrefix(*failed.Error, "call Job.Token before returning Deferred"))
	inState(t, r, earlier, job.Waiting) // the token of an earlier attempt is valid
}
