//go:build long

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestLogicalReplication(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	from, to := pgtest.Server(t, "wal_level", "logical"), pgtest.Server(t)
	pgtest.Migrate(t, from.URL())
	pgtest.Migrate(t, to.URL())
	pool, copied := pgtest.Connect(t, from.URL()), pgtest.Connect(t, to.URL())
	config, err := pgx.ParseConfig(from.URL())
	is.NoErr(err)
	for _, table := range []string{"lanes", "queue_state", "cluster", "migrations", "maintenance"} {
		exec(t, copied, `truncate trapeze.`+table+` cascade`) // the initial copy brings their rows
	}
	exec(t, pool, `create publication p for all tables`)
	exec(t, copied, fmt.Sprintf(`create subscription s connection 'host=127.0.0.1 port=%d user=postgres password=%s dbname=%s' publication p`,
		config.Port, config.Password, config.Database))

	r := start(t, pool, runner.Options{}, map[string]handler{
		"nothing": succeed,
		"fails":   func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("broken") },
		"fans": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("nothing"), rawArgs("nothing")).Join(rawArgs("nothing")), nil
		},
	})
	for range 2 { // the second run updates the row of subjects
		waitEnded(t, r, enqueue(t, r, rawArgs("nothing", `{"a":1}`), runner.Subject("s"), runner.Unique("u", runner.WhileActive), runner.IdempotencyKey("i")))
	}
	waitPipeline(t, pool, enqueue(t, r, runner.Chain(rawArgs("nothing"), rawArgs("nothing"))))
	waitPipeline(t, pool, enqueue(t, r, rawArgs("fans")))
	failed := enqueue(t, r, rawArgs("fails"), runner.OnFailure(rawArgs("nothing")))
	waitEnded(t, r, failed)
	is.Equal(len(followers(t, pool, failed)), 1)
	_, err = r.Admin("ann").RetryMany(t.Context(), job.Filter{Kind: "fails"}, false) // deletes the row of done
	is.NoErr(err)
	waitEnded(t, r, failed)
	later := enqueue(t, r, rawArgs("nothing"), runner.Delay(time.Hour))
	_, err = r.Admin("ann").CancelMany(t.Context(), job.Filter{Kind: "nothing"}, false)
	is.NoErr(err)
	waitEnded(t, r, later)
	exec(t, pool, `delete from trapeze.subjects where subject = 's'`)
	quiet(t, pool)

	for _, table := range []string{"jobs", "done", "live", "parked", "subjects", "job_events", "unique_keys", "submissions", "fan_outs", "pipelines", "audit"} {
		arrives(t, pool, copied, table)
	}
	is.Equal(queryOne[int](t, copied, `select count(*)::int from trapeze.jobs where parent_id = $1`, failed), queryOne[int](t, pool, `select count(*)::int from trapeze.jobs where parent_id = $1`, failed))

	// Publication and subscription know a new day after a refresh.
	exec(t, pool, `select trapeze.ensure_partitions(12)`)
	exec(t, copied, `select trapeze.ensure_partitions(12)`)
	exec(t, copied, `alter subscription s refresh publication`)
	exec(t, pool, `update trapeze.done set finished_at = finished_at + interval '11 days' where id = $1`, failed)
	arrives(t, pool, copied, "done")

	// A switch to the copy: its sequences have not advanced, and settle_history() moves them above the ids in use.
	exec(t, copied, `drop subscription s`)
	highest := queryOne[int64](t, copied, `select max(id) from trapeze.jobs`)
	r2 := start(t, copied, runner.Options{}, map[string]handler{
		"nothing": succeed,
		"fails":   func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("broken") },
	})
	id := enqueue(t, r2, rawArgs("fails"), runner.OnFailure(rawArgs("nothing")))
	waitEnded(t, r2, id)
	is.True(id > highest)
	is.Equal(len(followers(t, copied, id)), 1)
	quiet(t, copied)
}

// arrives waits until the copy of a table has the same rows.
func arrives(t *testing.T, from, to *pgxpool.Pool, table string) {
	t.Helper()
	sql := strings.ReplaceAll(`select coalesce(md5(string_agg(md5(r::text), '' order by md5(r::text))), '') from trapeze.TABLE r`, "TABLE", table)
	pgtest.WaitFor(t, time.Minute, "the rows of "+table+" arrive", func() bool { return queryOne[string](t, from, sql) == queryOne[string](t, to, sql) })
}
