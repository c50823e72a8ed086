package runner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
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

// Each way to submit jobs with keys keeps the limit, with polls so rare that nothing but the fast path admits them.
func TestConcurrencyPerKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var count perKey
	var pods []*runner.Runner
	for i := range 2 {
		r := newRunner(t, pool, runner.Options{Name: fmt.Sprint("pod-", i), Slots: 6, PollEvery: seldom}, nil)
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
