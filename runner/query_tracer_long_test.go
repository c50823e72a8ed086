//go:build long

package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The host pool's tracer sees the transactions on that pool. It sees statements on the runner's own connections only if TraceQueries is
// set.
func TestHostPoolQueryTracer(t *testing.T) {
	t.Parallel()
	const heartbeats, listens, submits, writes = "trapeze.pods", "listen ", "trapeze.jobs", "insert into mine"
	give := map[string]func(*pgxpool.Config, *listener){
		"in the configuration": func(c *pgxpool.Config, l *listener) { c.ConnConfig.Tracer = l },
		"by a hook": func(c *pgxpool.Config, l *listener) {
			c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error { conn.Tracer = l; return nil }
		},
	}
	for name, give := range give {
		for _, all := range []bool{false, true} {
			t.Run(map[bool]string{false: "alone ", true: "asked "}[all]+name, func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				url := pgtest.URL(t)
				observer := pgtest.Connect(t, url)
				_, err := observer.Exec(t.Context(), `create table mine (id bigint)`)
				is.NoErr(err)
				config, err := pgxpool.ParseConfig(url)
				is.NoErr(err)
				l := &listener{heard: map[string]int{heartbeats: 0, listens: 0, submits: 0, writes: 0}}
				give(config, l)
				pool, err := pgxpool.NewWithConfig(t.Context(), config)
				is.NoErr(err)
				t.Cleanup(pool.Close)
				r := start(t, pool, runner.Options{TraceQueries: all, HeartbeatInterval: 50 * time.Millisecond}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
					return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `insert into mine values (1)`)
						return err
					}), nil
				}})
				is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
				is.True(l.count(submits) > 0 == all) // submitted on a connection of the runner
				is.Equal(l.count(writes), 1)         // written through the host's pool
				lease := queryOne[time.Time](t, observer, `select lease_until from trapeze.pods`)
				pgtest.Wait(t, "heartbeats", func() bool {
					return queryOne[time.Time](t, observer, `select lease_until from trapeze.pods`).After(lease.Add(200 * time.Millisecond))
				})
				pgtest.Wait(t, "notifications", func() bool {
					return queryOne[int](t, observer, `select count(*) from pg_stat_activity where application_name = 'trapeze-listen' and datname = current_database()`) > 0
				})
				is.True(l.count(heartbeats) > 0 == all)
				is.True(l.count(listens) > 0 == all)

				before := l.count(submits)
				is.NoErr(pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := r.EnqueueTx(t.Context(), tx, rawArgs("k"))
					return err
				}))
				is.True(l.count(submits) > before) // submitted in the host's transaction
			})
		}
	}
}
