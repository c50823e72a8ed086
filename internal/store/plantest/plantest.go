// Package plantest checks the SQL statements of the store packages in their tests. It checks that every statement is listed and can be
// prepared by PostgreSQL, that hot statements keep their query plans, and that some statements read no more from a long history than from a
// short one.
package plantest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

var update = flag.Bool("update", false, "rewrite the plans in testdata/explain")

// Listed reports which statements of the package in the current directory are missing from a list.
func Listed(t *testing.T, statements map[string]string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for _, id := range spec.Names {
				sql, listed := statements[id.Name]
				if !listed && strings.HasSuffix(id.Name, "SQL") && id.Name != "historySQL" {
					t.Errorf("%s in %s is not in the list of statements", id.Name, name)
				}
				if strings.ContainsFunc(sql, func(r rune) bool { return r > unicode.MaxASCII }) {
					t.Errorf("%s in %s has a character that is not ASCII, which a LATIN1 database may refuse", id.Name, name)
				}
				if strings.Contains(sql, `\`) {
					t.Errorf("%s in %s has a backslash, which has another meaning if standard_conforming_strings is off", id.Name, name)
				}
			}
			return true
		})
	}
}

// Prepare reports the statements that PostgreSQL cannot prepare.
func Prepare(t *testing.T, url string, statements map[string]string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for name, sql := range statements {
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("cannot prepare %s: %v", name, err)
		}
	}
}

// whole matches scans of a growing table in which no index condition limits where the scan starts. It also matches bitmap scans of such
// tables, because they collect all rows before returning the first one, and scans of an index of live that has no condition on the index's
// first column.
var whole = regexp.MustCompile(`(Seq Scan|Bitmap Heap Scan) on (jobs|live|done\w*|parked|job_events\w*|subjects|fan_outs|parts|schedule_occurrences|stats)\b` +
	`|Index (Only )?Scan( Backward)? using \w+ on (jobs|live|done\w*|parked|job_events\w*|subjects|fan_outs|parts|schedule_occurrences|stats)\b.*\n +[^I ].*` +
	`|using live_for_\w+ on .*\n +Index Cond: \(id .*`)

// NotWhole reports any full table scan in a query plan.
func NotWhole(t *testing.T, name, plan string) {
	t.Helper()
	for _, found := range whole.FindAllString(plan, -1) {
		if name == "heartbeat" && strings.Contains(found, "parked_for_promotion") {
			continue // the statement reads only the first row in index order
		}
		t.Errorf("%s reads a whole table: %s:\n%s", name, found, plan)
	}
}

// Keep compares the query plans of hot statements with those stored in testdata/explain, and reports scans of whole tables.
func Keep(t *testing.T, conn *pgx.Conn, hot map[string]string) {
	t.Helper()
	var major int
	if err := conn.QueryRow(t.Context(), `select current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		t.Fatal(err)
	}
	for name, sql := range hot {
		plan := Explain(t, conn, name, sql, "costs off")
		NotWhole(t, name, plan)
		golden := filepath.Join("testdata", "explain", name+".txt")
		plan = fmt.Sprintf("PostgreSQL %d\n%s", major, steady(plan))
		if *update {
			if err := os.WriteFile(golden, []byte(plan), 0o644); err != nil { // #nosec G306 -- golden files must be readable by everyone
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		version, _, _ := strings.Cut(string(want), "\n")
		if version != fmt.Sprintf("PostgreSQL %d", major) {
			continue // other major versions plan differently; scans of whole tables are still reported
		}
		if plan != string(want) {
			t.Errorf("the plan of %s has changed; review it, then run go test -run Plans -update in its package\ngot:\n%s\nwant:\n%s", name, plan, want)
		}
	}
}

// OnlyRead reports statements that a store would repeat after a broken connection even though they write data.
func OnlyRead(t *testing.T, pool *pgxpool.Pool, statements map[string]string, again func(sql string) bool) {
	t.Helper()
	for name, sql := range statements {
		if !again(sql) {
			continue
		}
		err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			described, err := tx.Prepare(t.Context(), "", sql)
			if err != nil {
				return err
			}
			_, err = tx.Conn().PgConn().ExecParams(t.Context(), sql, make([][]byte, len(described.ParamOIDs)), nil, nil, nil).Close()
			return err
		})
		// Other errors are expected, because every parameter is null.
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "25006" {
			t.Errorf("%s writes: %v", name, err)
		}
	}
}

// Pinned opens a connection with the same planner settings as the connections in a store's pool.
func Pinned(t testing.TB, store *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), store.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Explain returns the generic query plan of a statement, which does not depend on the arguments.
func Explain(t testing.TB, conn *pgx.Conn, name, sql, options string, args ...string) string {
	t.Helper()
	prepared, err := conn.Prepare(t.Context(), name, sql)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for len(args) < len(prepared.ParamOIDs) {
		args = append(args, "null")
	}
	result, err := conn.Query(t.Context(), fmt.Sprintf("explain (%s) execute %s(%s)", options, name, strings.Join(args, ", ")),
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	lines, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Join(lines, "\n") + "\n"
}

// Touched counts the shared buffers that a statement reads, and the rows that its scans read.
type Touched struct{ Buffers, Rows int }

// Reads executes a read-only statement twice, and returns its rows and the smaller number of its buffers. A session that fell behind with
// the cache invalidations of other sessions reads the catalogs again, which takes hundreds of buffers.
func Reads(t *testing.T, conn *pgx.Conn, name, sql string, args ...string) Touched {
	t.Helper()
	read := func() Touched { return Read(t, Explain(t, conn, name, sql, "analyze, buffers, format json", args...)) }
	found := read()
	found.Buffers = min(found.Buffers, read().Buffers)
	return found
}

// LongAsShort reports statements that read more from a long history than from a short one.
func LongAsShort(t *testing.T, small, large map[string]Touched) {
	t.Helper()
	for name, s := range small {
		t.Logf("%-15s small %+v, large %+v", name, s, large[name])
		if l := large[name]; l.Rows > s.Rows+20 || l.Buffers > 2*s.Buffers {
			t.Errorf("%s reads %+v of a history fifty times as long, and %+v of a short one", name, l, s)
		}
	}
}

// Literals returns the values as quoted SQL literals.
func Literals(values ...string) []string {
	for i, v := range values {
		values[i] = "'" + strings.ReplaceAll(v, "'", "''") + "'"
	}
	return values
}

type node struct {
	Type    string  `json:"Node Type"`
	Parent  string  `json:"Parent Relationship"`
	Hit     int     `json:"Shared Hit Blocks"`
	Read    int     `json:"Shared Read Blocks"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []node  `json:"Plans"`
}

// Read adds up the buffers and rows in a JSON plan. The buffers of a node include those of its children, but not those of a data-modifying
// CTE that runs last. Each CTE is therefore counted separately, and some are counted twice.
func Read(t *testing.T, plan string) (sum Touched) {
	t.Helper()
	var tops []struct{ Plan node }
	if err := json.Unmarshal([]byte(plan), &tops); err != nil {
		t.Fatalf("%v in %s", err, plan)
	}
	var walk func(n node)
	walk = func(n node) {
		if n.Parent == "" || n.Parent == "InitPlan" {
			sum.Buffers += n.Hit + n.Read
		}
		if strings.Contains(n.Type, "Scan") {
			sum.Rows += int((n.Rows + n.Removed) * n.Loops)
		}
		for _, below := range n.Plans {
			walk(below)
		}
	}
	walk(tops[0].Plan)
	return sum
}

var (
	dayName  = regexp.MustCompile(`_\d{8}`)
	dayAlias = regexp.MustCompile(`\b([a-z]\w*)_\d+\b`)
)

// steady removes the parts of a plan that depend on the date: the names of daily partitions, and the repeated plan of each day.
func steady(plan string) string {
	plan = dayAlias.ReplaceAllString(dayName.ReplaceAllString(plan, "_DAY"), "${1}_n")
	lines := strings.Split(strings.TrimSuffix(plan, "\n"), "\n")
	for size := 1; size <= 3; size++ {
		var kept []string
		for i := 0; i < len(lines); {
			end := min(i+size, len(lines))
			block := lines[i:end]
			kept = append(kept, block...)
			for i += len(block); i+size <= len(lines) && len(block) == size && slices.Equal(lines[i:i+size], block); i += size {
			}
			if size > 1 && len(block) == size && !(i-end >= size) {
				// No repetition begins at this line, so continue with the next one.
				kept, i = kept[:len(kept)-size+1], end-size+1
			}
		}
		lines = kept
	}
	return strings.Join(lines, "\n") + "\n"
}

// SeedEnded inserts n jobs that finished in recent days. every determines the share of failed jobs: if it is 20, one job in twenty has
// failed.
func SeedEnded(t testing.TB, pool *pgxpool.Pool, n, every int) {
	t.Helper()
	for d := range 10 {
		for _, table := range []string{"done_succeeded", "done_failed", "done_cancelled"} {
			day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -d)
			pgtest.Exec(t, pool, `select trapeze.create_day($1, $2)`, table, day)
		}
	}
	pgtest.Exec(t, pool, `insert into trapeze.jobs (id, kind, lane, args, pipeline_id, parent_id, step, submitter, created_at)
		select g, 'k' || g / 10 % 3, 'default', '{}', g - case g % 10 when 1 then 1 else 0 end, case g % 10 when 1 then g - 1 end,
			case g % 10 when 1 then 1 else 0 end, case g % 4 when 0 then 'ana' else '' end,
			now() - interval '1 minute' - (g / 2) * (interval '18 days' / $1::int)
		from generate_series(1, $1::int) g`, n)
	pgtest.Exec(t, pool, `insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane, finished_at)
		select j.id, s.state, 'ok', 'ok', 1, 3, 1, 1, 0, 10, 'default', j.created_at + interval '20 seconds'
		from trapeze.jobs j cross join lateral (select case when j.id % $1::int = 1 then 'failed' when j.id % (2 * $1::int) = 0 then 'cancelled' else 'succeeded' end as state) s`, every)
	pgtest.Exec(t, pool, `insert into trapeze.pipelines (id, name, created_at) select pipeline_id, 'p' || pipeline_id % 3, created_at from trapeze.jobs where step = 1`)
	t.Cleanup(func() {
		pgtest.Exec(t, pool, `truncate trapeze.jobs, trapeze.done, trapeze.pipelines, trapeze.live, trapeze.parked`)
	})
}

// FillUnanalyzed analyzes live and parked while they are empty, and then inserts n rows into each, so that their statistics are stale.
func FillUnanalyzed(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	fill := func(n int) {
		pgtest.Exec(t, pool, `insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject, fence)
			select g, now(), 1, 10, 'pending', 'default', 'k', 's' || g % 100, 1 from generate_series(1000001, 1000000 + $1::int) g`, n)
		pgtest.Exec(t, pool, `insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
			select g, 'retry', now(), 1, 10, 'default', 'k', '' from generate_series(2000001, 2000000 + $1::int) g`, n)
	}
	fill(n)
	pgtest.Exec(t, pool, `delete from trapeze.live`)
	pgtest.Exec(t, pool, `delete from trapeze.parked`)
	for _, table := range []string{"live", "parked", "job_progress", "fan_outs", "subjects"} {
		pgtest.Exec(t, pool, `alter table trapeze.`+table+` set (autovacuum_enabled = false)`)
		pgtest.Exec(t, pool, `vacuum (analyze, truncate false) trapeze.`+table)
	}
	fill(n)
	t.Cleanup(func() { pgtest.Exec(t, pool, `truncate trapeze.live, trapeze.parked`) }) // the inserted rows have no matching rows in jobs
}

// Wide matches scans of live and parked in which no index condition selects a specific job, and scans of a live_for_ index whose only
// condition is on the id, which is not the index's first column.
var Wide = regexp.MustCompile(`Scan( Backward)? (using (live_for_\w+|\w+) )?on (live|parked)\b.*\n +(Filter|->|SubPlan).*|using live_for_\w+ on live\b.*\n +Index Cond: \(id = .*`)

// Open opens a store with the default options on a new, migrated database. open is store.New, which this package cannot import, because
// the tests of package store import it.
func Open[S interface{ Close() }, O any](t testing.TB, open func(context.Context, *pgxpool.Pool, O) (S, error)) S {
	t.Helper()
	var options O
	s, err := open(t.Context(), pgtest.Pool(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
