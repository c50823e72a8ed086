package runnertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// This test fails for a new timestamp column until its author decides whether its values move when a test advances the clock.
func TestHarnessTimestampColumns(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	h := New(t, pool, runner.Options{}, func(*runner.Runner) {})
	rows, err := pool.Query(t.Context(), `select c.table_name || '.' || c.column_name
		from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
		where c.table_schema = $1 and t.table_type = 'BASE TABLE' and c.data_type like 'timestamp%'`, h.Schema())
	is.NoErr(err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	is.NoErr(err)
	var known []string
	for table, columns := range moments {
		for _, column := range columns {
			known = append(known, table+"."+column)
		}
	}
	for _, name := range found {
		table, _, _ := strings.Cut(name, ".")
		history := strings.HasPrefix(table, "done") || strings.HasPrefix(table, "job_events") || table == "migrations" || table == "audit" || table == "cluster" || table == "stats"
		// Schedules follow the harness's own clock, so their timestamps do not move.
		calendar := table == "schedules" || table == "schedule_occurrences" || table == "maintenance"
		if !history && !calendar && !slices.Contains(known, name) {
			t.Errorf("%s: add the column to moments if it moves when a test advances the clock, or else to this test", name)
		}
	}
	for _, name := range known {
		is.True(slices.Contains(found, name)) // every listed column exists
	}
}
