//go:build long

package runner_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestJoinAfterTenThousandChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var joined atomic.Int64
	handlers := map[string]handler{
		"parent": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(many("child", 10_000)...).Join(rawArgs("join")), nil
		},
		"child": number,
		"join":  sum(t, &joined),
	}
	r := start(t, pool, named("a"), handlers)
	start(t, pool, named("b"), handlers)
	id := enqueue(t, r, rawArgs("parent"))
	is.Equal(waitPipeline(t, pool, id), "succeeded")
	is.Equal(joined.Load(), int64(1))
	is.Equal(queryOne[string](t, pool, `select result::text from trapeze.job where kind = 'join'`), `{"failed":0,"total":50005000}`)
	checkHistory(t, pool, r)
}
