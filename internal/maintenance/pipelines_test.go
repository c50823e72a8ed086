package maintenance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestPipelinePruningAfterRetention(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	m := newOne(t, pool, "a")
	next := 0
	stray := func() {
		next++
		_, err := pool.Exec(t.Context(), `insert into trapeze.pipelines (id, created_at) values ($1, now() - interval '2 hours')`, next)
		is.NoErr(err)
	}
	prune := func(err error) int {
		n, got := m.prunePipelines(t.Context(), func(context.Context) error { return err })
		is.True(errors.Is(got, err))
		return n
	}
	stray()
	is.Equal(prune(nil), 1) // a pod that has just started must read all pipelines
	stray()
	is.Equal(prune(nil), 0) // retention has removed nothing since
	m.pruned.batches.Add(1)
	is.Equal(prune(context.Canceled), 0) // the run is interrupted
	is.Equal(prune(nil), 1)              // the next run reads all pipelines again
	stray()
	before := time.Now().Add(-strayFor)
	m.pruned.read.Store(&before)
	is.Equal(prune(nil), 1) // a pipeline whose jobs were deleted by other means is found within a day
}
