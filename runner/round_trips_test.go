package runner_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// trips counts the round trips on a connection. A write that follows a read begins a new round trip.
type trips struct {
	net.Conn
	mu       sync.Mutex
	received bool
	n        int
	writes   bool // handlers' statements were sent on this connection
}

func (c *trips) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = true
	return n, err
}

func (c *trips) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.received {
		c.n++
	}
	c.received = false
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func TestWritesTakeFewRoundTrips(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	exec(t, pgtest.Connect(t, url), `create table mine (job bigint)`)
	const insert = `insert into mine values ($1)`
	write := func(ctx context.Context, tx pgx.Tx, j *raw) error {
		_, err := tx.Exec(ctx, insert, j.ID())
		return err
	}
	ways := map[string]struct {
		handler handler
		trips   int
	}{
		"in-tx": {func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, j) }), nil
		}, 3}, // one of them for the handler's own statement
		"write": {func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Done(nil).Write(insert, j.ID()).Write(insert, j.ID()), nil
		}, 2},
		"job-tx": {func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(tx pgx.Tx) error { return write(ctx, tx, j) }, 1)
		}, 3}, // one of them for the handler's own statement
		"job-write": {func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			b := &pgx.Batch{}
			b.Queue(insert, j.ID())
			b.Queue(insert, j.ID())
			return nil, j.Write(ctx, 1, b)
		}, 3},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			config, err := pgxpool.ParseConfig(url)
			is.NoErr(err)
			var mu sync.Mutex
			var all []*trips
			config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				c := &trips{Conn: conn}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, c)
				return faultnet.ListenIn(c, func(sql string) {
					if strings.HasPrefix(sql, "insert into mine") {
						c.mu.Lock()
						defer c.mu.Unlock()
						c.writes = true
					}
				}), nil
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			is.NoErr(err)
			t.Cleanup(pool.Close)
			r := start(t, pool, runner.Options{}, map[string]handler{name: way.handler})
			count := func() (n int) { // counts the host pool's connections on which handlers wrote
				mu.Lock()
				defer mu.Unlock()
				for _, c := range all {
					c.mu.Lock()
					if c.writes {
						n += c.n
					}
					c.mu.Unlock()
				}
				return n
			}
			var took []int
			for range 10 { // repeated, because the first runs prepare statements, and a run may include a ping
				before := count()
				is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs(name))).State, job.Succeeded)
				took = append(took, count()-before)
			}
			is.Equal(slices.Min(took), way.trips) // the expected number of round trips
		})
	}
}

// InTx also supports commands that cannot be sent in a batch, such as COPY.
func TestCopyInsideInTx(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table mine (job bigint, no int)`)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
		return runner.Then(rawArgs("next")).InTx(func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"mine"}, []string{"job", "no"}, pgx.CopyFromRows([][]any{{j.ID(), 1}, {j.ID(), 2}})); err != nil {
				return err
			}
			if _, err := tx.Conn().Exec(ctx, `insert into mine values ($1, 3)`, j.ID()); err != nil {
				return err
			}
			inner, err := tx.Begin(ctx) // a savepoint
			if err != nil {
				return err
			}
			if _, err := inner.Exec(ctx, `insert into mine values ($1, 4)`, j.ID()); err != nil {
				return err
			}
			return inner.Rollback(ctx)
		}), nil
	}, "next": succeed})
	id := enqueue(t, r, rawArgs("k"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.Equal(column[int](t, pool, `select no from mine where job = $1 order by no`, id), []int{1, 2, 3})
	is.Equal(queryOne[int](t, pool, `select count(distinct xmin::text) from mine`), 1)
	is.Equal(queryOne[int](t, pool, `select count(*) from mine m join trapeze.done d on d.id = m.job where d.xid::xid <> m.xmin`), 0) // committed together with the job's end
	quiet(t, pool)                                                                                                                    // waits for the next step
	checkHistory(t, pool, r)
}
