//go:build long

package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/runner"
)

func TestStatsOfStoppedPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{MaxAttempts: 2, Lanes: []runner.LaneSetup{{Name: "slow", Kinds: []string{"slow"}}}}
	handlers := map[string]handler{
		"plain": succeed,
		"slow": func(context.Context, *raw) (*runner.Outcome, error) {
			<-time.After(30 * time.Millisecond) // gives the job a measurable run time
			return nil, nil
		},
		"fails": func(context.Context, *raw) (*runner.Outcome, error) {
			return nil, runner.RetryAfter(0, errors.New("no"))
		},
		"many": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("plain"), rawArgs("fails")).Join(rawArgs("plain")), nil
		},
		"panics": func(context.Context, *raw) (*runner.Outcome, error) { panic("no") },
	}
	var stops []func()
	var pods []*runner.Runner
	for range 2 {
		r := newRunner(t, pool, o, handlers)
		pods, stops = append(pods, r), append(stops, run(t, r))
	}
	var ids []int64
	for i := range 8 {
		for kind := range handlers {
			ids = append(ids, enqueue(t, pods[i%2], rawArgs(kind)))
		}
	}
	delayed := enqueue(t, pods[0], rawArgs("plain"), runner.Delay(time.Hour))
	_, err := pods[1].Admin("ann").Cancel(t.Context(), delayed)
	is.NoErr(err)
	for _, id := range ids {
		waitEnded(t, pods[0], id)
	}
	pgtest.Wait(t, "all pipelines have ended", func() bool {
		return queryOne[int](t, pool, `select count(*)::int from trapeze.job where finished_at is null`) == 0
	})
	want := numbersOf(t, pool, numbersInDone)
	stops[1]()
	is.True(len(numbersOf(t, pool, numbersInStats)) > 0) // a stopping pod writes its counts immediately
	stops[0]()
	is.Equal(numbersOf(t, pool, numbersInStats), want)

	r := newRunner(t, pool, o, nil)
	defer r.Close()
	rows, err := view.ReadStats(t.Context(), inside.Of(r).Store, view.StatsFilter{Window: time.Hour, Lane: "slow"})
	is.NoErr(err)
	slow := rows.By(view.ByKind).Total
	is.Equal(slow.Succeeded, int64(8))
	is.True(slow.RunP50.Duration() > 20*time.Millisecond) // accurate within a factor of √2; the actual time is at least 30 ms
	is.True(slow.WaitP50 != nil)
}

// numbersOf returns a table's counts of ended jobs, each formatted as "lane kind state n".
func numbersOf(t *testing.T, pool *pgxpool.Pool, from string) []string {
	t.Helper()
	return column[string](t, pool, `select concat_ws(' ', lane, kind, state, sum(n)) from (`+from+`) s group by lane, kind, state order by 1`)
}

const (
	numbersInDone  = `select lane, kind, state, 1 as n from trapeze.job where finished_at is not null`
	numbersInStats = `select lane, kind, state, jobs as n from trapeze.stats`
)
