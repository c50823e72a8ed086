package runner_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func holds(text string) func([]byte) bool {
	return func(b []byte) bool { return bytes.Contains(b, []byte(text)) }
}

// Each case loses the server's reply to one commit of job "a", whose next step is "b". No job may be lost, duplicated or left running
// forever.
func TestLostReplyToCommit(t *testing.T) {
	t.Parallel()
	type loss struct {
		cut     string // a substring of the request whose reply is cut
		commit  string // a statement of the transaction whose commit loses its reply
		options []runner.EnqueueOption
		front   bool                                         // the submitter loses the reply
		handler func(j *raw, n int) (*runner.Outcome, error) // the handler of a; n is the number of the call
		runsA   int                                          // number of calls to a's handler
		fence   int64
	}
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `create table rows (job bigint)`)
	proxy, pool := cable(t, url)
	var (
		mu   sync.Mutex
		now  loss
		runs map[string]int
	)
	o := named("a")
	o.PollInterval, o.LeaseDuration = 200*time.Millisecond, 6*time.Second
	r := start(t, pool, o, map[string]handler{
		"kind-a": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			runs["a"]++
			if now.handler != nil {
				return now.handler(j, runs["a"])
			}
			return runner.Then(rawArgs("kind-b")).Result("result-of-a"), nil
		},
		"kind-b": func(context.Context, *raw) (*runner.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			runs["b"]++
			return nil, nil
		},
	}, runner.Retry(3, soon))
	other := newRunner(t, direct, o, map[string]handler{"kind-a": succeed})
	submitted := 0
	for name, c := range someOf(map[string]loss{
		"of a claim":                      {cut: "kind-a", runsA: 1, fence: 2},
		"of a finish with a next step":    {cut: "result-of-a", runsA: 1, fence: 1},
		"of a finish with writes":         {commit: "insert into rows", runsA: 1, fence: 1, handler: withRow},
		"of a finish with a statement":    {commit: "insert into rows", runsA: 1, fence: 1, handler: withStatement},
		"of a retry":                      {cut: "error-of-a", runsA: 2, fence: 2, handler: onceWrong},
		"of a retry later":                {cut: "later-of-a", runsA: 2, fence: 2, handler: onceLater},
		"of an enqueue":                   {cut: "args-of-a", runsA: 1, fence: 1, front: true},
		"of an enqueue on a subject":      {cut: "args-of-a", runsA: 1, fence: 1, front: true, options: []runner.EnqueueOption{runner.Subject("s")}},
		"of an enqueue to be run later":   {cut: "args-of-a", runsA: 1, fence: 1, front: true, options: []runner.EnqueueOption{runner.Delay(time.Millisecond)}},
		"of an enqueue with a key":        {cut: "commit", runsA: 1, fence: 1, front: true, options: []runner.EnqueueOption{runner.IdempotencyKey("k")}},
		"of an enqueue with a unique key": {cut: "commit", runsA: 1, fence: 1, front: true, options: []runner.EnqueueOption{runner.Unique("k", runner.WhileActive)}},
	}, "of a claim", "of a finish with a next step", "of a finish with writes", "of a finish with a statement", "of a retry",
		"of an enqueue", "of an enqueue to be run later", "of an enqueue with a key") {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			mu.Lock()
			now, runs = c, map[string]int{}
			mu.Unlock()
			submitter := other
			if c.front {
				submitter = r
			}
			var cut <-chan struct{}
			if c.commit != "" {
				cut, _ = proxy.CutReply(c.commit)
			} else {
				cut = proxy.CutReplyOnce(holds(c.cut))
			}
			id := enqueue(t, submitter, rawArgs("kind-a", `"args-of-a"`), c.options...)
			<-cut
			j := waitEnded(t, submitter, id)
			is.Equal(j.State, job.Succeeded)
			is.True(j.Fence <= c.fence)
			is.Equal(j.Crashes, 0)
			quiet(t, direct) // no job is left running on the pod
			submitted++
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'kind-a'`), submitted)
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'kind-b'`), submitted) // there is one child
			mu.Lock()
			defer mu.Unlock()
			is.Equal(runs, map[string]int{"a": c.runsA, "b": 1}) // the child ran once
			rows := 0
			if c.commit != "" {
				rows = 1
			}
			is.Equal(queryOne[int](t, direct, `select count(*) from rows where job = $1`, id), rows)
		})
	}
	checkHistory(t, direct, other)
}

func withRow(j *raw, _ int) (*runner.Outcome, error) {
	return runner.Then(rawArgs("kind-b")).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
		return err
	}), nil
}

func withStatement(j *raw, _ int) (*runner.Outcome, error) {
	return runner.Then(rawArgs("kind-b")).Write(`insert into rows values ($1)`, j.ID()), nil
}

func onceWrong(_ *raw, n int) (*runner.Outcome, error) {
	if n == 1 {
		return nil, errors.New("error-of-a")
	}
	return runner.Then(rawArgs("kind-b")), nil
}

func onceLater(_ *raw, n int) (*runner.Outcome, error) {
	if n == 1 {
		return runner.Snooze(time.Millisecond, "later-of-a"), nil
	}
	return runner.Then(rawArgs("kind-b")), nil
}

func TestEndDuringMissingTable(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	wait, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{
		"a": func(context.Context, *raw) (*runner.Outcome, error) {
			<-wait
			return runner.Then(rawArgs("b")).Result(1), nil
		},
		"b": succeed,
	})
	id := enqueueStarted(t, r, rawArgs("a"))
	exec(t, pool, `alter table trapeze.done rename to elsewhere`)
	open()
	pgtest.Wait(t, "the end is rejected", func() bool { return metricValue(t, r, "trapeze_db_errors_total") > 1 })
	exec(t, pool, `alter table trapeze.elsewhere rename to done`)
	j := waitEnded(t, r, id)
	is.Equal(j.State, job.Succeeded) // the job is neither lost nor run again
	is.Equal(j.Fence, int64(1))
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.done`), 2)
}
