package runner_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// numbersOf returns a table's counts of ended jobs, each formatted as "lane kind state n".
func numbersOf(t *testing.T, pool *pgxpool.Pool, from string) []string {
	t.Helper()
	return column[string](t, pool, `select concat_ws(' ', lane, kind, state, sum(n)) from (`+from+`) s group by lane, kind, state order by 1`)
}

const (
	numbersInDone  = `select lane, kind, state, 1 as n from trapeze.job where finished_at is not null`
	numbersInStats = `select lane, kind, state, jobs as n from trapeze.stats`
)
