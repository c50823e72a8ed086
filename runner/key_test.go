package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// perKey counts the jobs of each key that run at a time.
type perKey struct {
	mu        sync.Mutex
	now, most map[string]int
}

func (p *perKey) handler(_ context.Context, j *raw) (*runner.Outcome, error) {
	p.add(j.Key(), 1)
	defer p.add(j.Key(), -1)
	if j.Step() < 2 {
		return runner.Then(rawArgs("k")), nil
	}
	return nil, nil
}

func (p *perKey) add(key string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now, p.most = map[string]int{}, map[string]int{}
	}
	p.now[key] += n
	p.most[key] = max(p.most[key], p.now[key])
}

// A job that SQL submits with a key waits for its place. Its next steps have the same key, unless they name another one or none.
func TestSQLSubmissionOfKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{PollInterval: seldom}, nil)
	var count perKey
	runner.HandleRaw(r, "k", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		count.add(j.Key(), 1)
		defer count.add(j.Key(), -1)
		return nil, nil
	}, runner.ConcurrencyPerKey(1))
	run(t, r)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	var ids []int64
	for range 5 {
		made, err := runner.EnqueueSQL(t.Context(), db, runner.Chain(rawArgs("k"), rawArgs("k"), runner.With(rawArgs("k"), runner.Key("other")),
			rawArgs("k"), runner.With(rawArgs("k"), runner.Key(""))), runner.Key("tenant"))
		is.NoErr(err)
		ids = append(ids, made.ID)
	}
	for _, id := range ids {
		is.Equal(waitPipeline(t, pool, id), "succeeded")
		is.Equal(queryOne[string](t, pool, `select string_agg(coalesce(key, ''), ' ' order by step) from trapeze.jobs where pipeline_id = $1`, id), "tenant tenant other other ")
	}
	is.Equal(count.most["tenant"], 1)
	is.Equal(count.most["other"], 1)
	for _, call := range []string{`key => '*'`, `key => repeat('k', 201)`, `chain => '[{"kind": "k", "key": "*"}]'`} {
		_, err := pool.Exec(t.Context(), `select trapeze.enqueue(kind => 'k', `+call+`)`)
		if !strings.Contains(fmt.Sprint(err), "key of more than 200 bytes, or *") {
			t.Errorf("%s: %v", call, err)
		}
	}
	for _, key := range []string{"*", strings.Repeat("k", 201)} {
		_, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k"), runner.Key(key))
		is.True(errors.Is(err, job.ErrInvalid))
	}
}

// Children of a fan-out and the step after them have their parent's key, unless they name another one.
func TestKeyOfChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{PollInterval: seldom}, map[string]handler{
		"k": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("child"), runner.With(rawArgs("child"), runner.Key("other")),
				runner.Chain(runner.With(rawArgs("child"), runner.Key("")), rawArgs("last"))).Join(rawArgs("join")), nil
		},
		"child": succeed, "last": succeed, "join": succeed,
	})
	id := enqueue(t, r, rawArgs("k"), runner.Key("tenant"))
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(queryOne[string](t, pool, `select string_agg(kind || ':' || coalesce(key, ''), ' ' order by kind, child_no) from trapeze.jobs where pipeline_id = $1`, id),
		"child:tenant child:other child: join:tenant k:tenant last:")
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live`), 0)
	checkHistory(t, pool, r)
}

// Each way to submit jobs with keys keeps the limit, with polls so rare that nothing but the fast path admits them.
func TestConcurrencyPerKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var count perKey
	var pods []*runner.Runner
	for i := range 2 {
		r := newRunner(t, pool, runner.Options{PodName: fmt.Sprint("pod-", i), Slots: 6, PollInterval: seldom}, nil)
		runner.HandleRaw(r, "k", count.handler, runner.ConcurrencyPerKey(2))
		run(t, r)
		pods = append(pods, r)
	}
	var ids []int64
	for i := range 40 {
		key := runner.Key(fmt.Sprint("tenant-", i%3))
		switch by := pods[i%2]; i % 4 {
		case 0:
			ids = append(ids, enqueue(t, by, rawArgs("k"), key))
		case 1:
			list := []job.Args{rawArgs("k"), rawArgs("k"), rawArgs("k")}
			made, err := by.EnqueueMany(t.Context(), list, key)
			is.NoErr(err)
			ids = append(ids, made...)
		case 2:
			is.NoErr(by.Tx(t.Context(), func(tx pgx.Tx) error {
				made, err := by.EnqueueTx(t.Context(), tx, rawArgs("k"), key)
				ids = append(ids, made.ID)
				return err
			}))
		default:
			ids = append(ids, enqueue(t, by, rawArgs("k"), key, runner.Subject(fmt.Sprint(i%8))))
		}
	}
	for _, id := range ids {
		is.Equal(waitPipeline(t, pool, id), "succeeded")
	}
	for key, most := range count.most {
		if most > 2 {
			t.Errorf("%d jobs of %s ran at a time", most, key)
		}
	}
	is.Equal(len(count.most), 3)
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.live`), 0)
	checkHistory(t, pool, pods[0])
}
