package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// batchOf is the number of jobs per batch in these tests: the maximum that one statement can finish.
const batchOf = 500

// deep is an args type whose JSON is valid, but nested too deeply for PostgreSQL's recursive parser.
type deep []any

func (deep) Kind() string { return "deep" }

// tooDeep is nested too deeply for any PostgreSQL release to parse with the default max_stack_depth.
var tooDeep = deep{nested(100_000)}

func nested(levels int) any {
	var v any
	for range levels {
		v = []any{v}
	}
	return v
}

// runsOf counts each job's runs.
type runsOf struct {
	mu sync.Mutex
	by map[int64]int
}

func (c *runsOf) add(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[int64]int{}
	}
	c.by[id]++
}

// onceEach reports whether exactly n jobs ran, each of them once.
func (c *runsOf) onceEach(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, runs := range c.by {
		if runs != 1 {
			return false
		}
	}
	return len(c.by) == n
}

// Jobs with keys are submitted one at a time, sometimes in the host's transaction. A rejected job must leave that transaction usable for
// the other jobs.
func TestRejectedJobInsideTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var ran runsOf
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		ran.add(j.ID())
		return nil, nil
	}})
	enqueue(t, r, rawArgs("k", `"taken"`), runner.IdempotencyKey("key 50"))
	wants := map[int]error{20: job.ErrTooLarge, 30: job.ErrInvalidArgs, 40: job.ErrInvalid, 50: job.ErrKeyReused}
	err := r.Tx(t.Context(), func(tx pgx.Tx) error {
		for i := range 100 {
			args, options := rawArgs("k", fmt.Sprint(i)), []runner.EnqueueOption{runner.IdempotencyKey(fmt.Sprintf("key %d", i))}
			switch i {
			case 20:
				args = rawArgs("k", `"`, strings.Repeat("x", job.MaxArgsBytes), `"`)
			case 30:
				args = rawArgs("k", `"\u0000"`)
			case 40:
				options = append(options, runner.Subject("a\x00b"))
			}
			_, err := r.EnqueueTx(t.Context(), tx, args, options...)
			is.True(errors.Is(err, wants[i])) // only the invalid submissions fail, each with its reason
		}
		return nil
	})
	is.NoErr(err)
	quiet(t, pool)
	is.True(ran.onceEach(1 + 100 - len(wants))) // all other jobs ran once
}

// after returns a next step. An index created by the test requires its args to be unique.
func after(once string) runner.Raw {
	return runner.Raw{Name: "after", JSON: json.RawMessage(`{"once":"` + once + `"}`)}
}

// noise returns text that does not compress.
func noise(bytes int) string {
	text := make([]byte, bytes)
	for i := range text {
		text[i] = 'a' + byte(rand.IntN(26))
	}
	return string(text)
}

// Jobs that end together are written together. If PostgreSQL or an earlier check rejects one of them, that job fails with the reason. All
// others finish and continue their pipelines as if the rejected job did not exist.
func TestPoisonedFinishInBatch(t *testing.T) {
	t.Parallel()
	for name, poison := range someOf(map[string]struct {
		outcome *runner.Outcome
		reason  job.Reason // empty to accept any reason, as long as there is an error
		says    string     // a substring of the job's error
	}{
		"conflict":                    {runner.Then(after("taken")), job.ReasonUnstorable, "23505"},
		"oversized for an index":      {runner.Then(after(noise(100_000))), job.ReasonUnstorable, "54000"},
		"text PostgreSQL cannot read": {runner.Then(after(`\ud800`)), job.ReasonInvalidArgs, "surrogate"},
		"args nested too deep":        {runner.Then(tooDeep), "", ""},
		"a result nested too deep":    {runner.Done(tooDeep), "", ""},
		"oversized":                   {runner.Then(after(noise(job.MaxArgsBytes))), job.ReasonResultTooLarge, "at most"},
		"a NUL character":             {runner.Then(after(`a\u0000b`)), job.ReasonInvalidArgs, "NUL"},
		"invalid UTF-8":               {runner.Then(after("a\xffb")), job.ReasonInvalidArgs, "UTF-8"},
		"a key":                       {runner.Then(after("key"), runner.Unique("one", runner.WhileActive)), job.ReasonError, "keys are allowed only on submissions"},
	}, "conflict", "a result nested too deep", "invalid UTF-8") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			exec(t, pool, `create unique index on trapeze.jobs ((args ->> 'once')) where kind = 'after'`)
			wait, open := latch(t)
			var ran runsOf
			r := start(t, pool, runner.Options{Slots: batchOf}, map[string]handler{
				"before": func(_ context.Context, j *raw) (*runner.Outcome, error) {
					<-wait
					ran.add(j.ID())
					if string(j.Args.JSON) == `"poison"` {
						return poison.outcome, nil
					}
					return runner.Then(after(fmt.Sprint(j.ID()))).Result(j.ID()), nil
				},
				"after": func(_ context.Context, j *raw) (*runner.Outcome, error) {
					ran.add(j.ID())
					return nil, nil
				},
				"deep": succeed,
			})
			inState(t, r, enqueue(t, r, after("taken")), job.Succeeded)
			list := make([]job.Args, batchOf)
			for i := range list {
				list[i] = rawArgs("before")
			}
			at := rand.IntN(batchOf)
			list[at] = rawArgs("before", `"poison"`)
			ids, err := r.EnqueueMany(t.Context(), list)
			is.NoErr(err)
			pgtest.Wait(t, "all jobs are running", func() bool { return r.Running() == batchOf })
			open()

			const others = `from trapeze.jobs j join trapeze.done d using (id)
				where d.state = 'succeeded' and d.outcome = 'ok' and j.id <> $1`
			pgtest.Wait(t, "all others have ended, including their next steps", func() bool {
				return queryOne[int](t, pool, `select count(*) `+others, ids[at]) == 2*(batchOf-1)+1
			})
			is.Equal(queryOne[int](t, pool, `select count(distinct j.parent_id) `+others+` and j.kind = 'after'`, ids[at]), batchOf-1) // each job has its next step
			is.Equal(queryOne[int](t, pool, `select count(*) `+others+` and d.result::text = j.id::text`, ids[at]), batchOf-1)         // each job has its own result

			failed := inState(t, r, ids[at], job.Failed)
			is.True(poison.reason == "" || reasonOf(failed) == poison.reason) // the failed job has the expected reason
			is.True(message(failed) != "")
			is.True(strings.Contains(message(failed), poison.says)) // the failed job has the expected error text
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where parent_id = $1`, ids[at]), 0)
			quiet(t, pool)
			is.True(ran.onceEach(2 * batchOf))                                               // every job ran once
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 2*batchOf) // no job is lost
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done`), 2*batchOf) // no job ended twice
			pgtest.Wait(t, "the slots are free", func() bool { return r.Running() == 0 })
		})
	}
}
