package runner_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// The page about submitting from SQL must list the function's parameters, and its example statements must run.
func TestSQLPageParametersAndExamples(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	text, err := os.ReadFile("../docs/enqueue-from-sql.md")
	is.NoErr(err)
	page := string(text)
	rows := regexp.MustCompile(`(?m)^\| `+"`([a-z_]+)` \\| ([a-z]+) \\| *(.*?) *\\|").FindAllStringSubmatch(page, -1)
	var listed []string
	for _, row := range rows {
		listed = append(listed, row[1]+" "+row[2])
	}
	has := queryOne[string](t, pool, `select pg_get_function_identity_arguments('trapeze.enqueue'::regproc)`)
	has = strings.ReplaceAll(strings.Split(has, ", OUT ")[0], "timestamp with time zone", "timestamptz")
	is.Equal(strings.Join(listed, ", "), has)
	has = queryOne[string](t, pool, `select pg_get_function_arguments('trapeze.enqueue'::regproc)`)
	for i, argument := range strings.Split(strings.Split(has, ", OUT ")[0], ", ") {
		_, value, optional := strings.Cut(argument, " DEFAULT ")
		value, _, _ = strings.Cut(value, "::")
		said := strings.Trim(rows[i][3], "`")
		switch value = strings.Trim(value, "'"); {
		case !optional:
			is.Equal(said, "") // the page shows no default
		case value == "NULL" || value == "":
			is.True(said != "") // the page describes the effect of omitting the parameter
		default:
			is.Equal(said, value) // the page shows the default
		}
	}
	exec(t, pool, `create table orders (no int)`)
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(page, -1) {
		exec(t, pool, block[1])
	}
	is.Equal(queryOne[string](t, pool, `select string_agg(kind || subject || json_array_length(coalesce(planned, '[]')), ' ' order by id) from trapeze.jobs`),
		"mailorder 70 reserve3")
}
