package podtest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// Quiet waits until every job has ended.
func Quiet(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Wait(t, "every job has ended", func() bool {
		return pgtest.QueryOne[int](t, pool, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0
	})
}

// Running returns the number of running jobs.
func Running(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return pgtest.QueryOne[int](t, pool, `select count(*)::int from trapeze.live where state = 'running'`)
}

// Counter counts the claims that are sent over a pool's connections.
type Counter struct{ Claims atomic.Int64 }

func (c *Counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "'job.claimed' from claimed") {
		c.Claims.Add(1)
	}
	return ctx
}

func (c *Counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Counted returns a pool that counts claims, for runners with Options.TraceQueries.
func Counted(t *testing.T, url string) (*pgxpool.Pool, *Counter) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c := &Counter{}
	config.ConnConfig.Tracer = c
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, c
}

// TakesClaim is a statement that makes a running job pending without its pod's knowledge. Its argument is the job's ID.
const TakesClaim = `update trapeze.live set state = 'pending', pod = null, attempt = 0, fence = fence + 1000 where id = $1`
