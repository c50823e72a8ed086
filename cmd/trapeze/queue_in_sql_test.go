package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// TestQueueInSQL types the statements of the page into a database, in order, and checks what each of them returns.
func TestQueueInSQL(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	page, err := os.ReadFile("../../docs/queue-in-sql.md")
	is.NoErr(err)
	pool := pgtest.Pool(t)
	var returned []any
	lines := 0
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		lines += strings.Count(block[1], "\n")
		for statement := range strings.SplitSeq(strings.TrimSpace(block[1]), ";\n") {
			rows, err := pool.Query(t.Context(), statement)
			is.NoErr(err)
			found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
			is.NoErr(err)
			for _, row := range found {
				returned = append(returned, row...)
			}
		}
	}
	is.Equal(returned, []any{int64(1), int64(1), int64(3), int64(1), int64(2), "paris", int64(3), int32(1)}) // claim, end, admission, recovery
	is.True(lines <= 60)                                                                                     // as the title says
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*)::int from trapeze.job where state in ('pending', 'succeeded')`), 3)
}
