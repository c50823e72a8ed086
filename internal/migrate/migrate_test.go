package migrate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// known returns the number of migrations. Their version numbers may have gaps.
func known(t *testing.T) int {
	t.Helper()
	list, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestConcurrentMigrationsByTwentyPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	var pods sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		pods.Go(func() { errs[i] = migrate.Up(t.Context(), url, "trapeze") })
	}
	pods.Wait()
	is.NoErr(errors.Join(errs...))
	pool := pgtest.Connect(t, url)
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.migrations where version_id > 0`), known(t))
	// each migration was applied exactly once
	is.Equal(locks(t, pool), 0)
}

// Function bodies are parsed with the caller's settings, so a literal with a backslash must be an escape string.
func TestLiteralsWithoutConformingStrings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	names, err := fs.Glob(migrations.Files, "*.sql")
	is.NoErr(err)
	literal := regexp.MustCompile(`--[^\n]*|E?'([^'\\]|\\.|'')*'`)
	for _, name := range names {
		text, err := migrations.Files.ReadFile(name)
		is.NoErr(err)
		is.True(!bytes.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII })) // a LATIN1 database refuses other characters
		for _, found := range literal.FindAllString(string(text), -1) {
			if strings.HasPrefix(found, "'") && strings.Contains(found, `\`) {
				t.Errorf("%s: %s depends on standard_conforming_strings: write E%s with doubled backslashes", name, found, found)
			}
		}
	}
}

func TestMigrationsRunWithoutConformingStrings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	_, err := pool.Exec(t.Context(), `do $$ begin execute format('alter database %I set standard_conforming_strings = off', current_database()); end $$`)
	is.NoErr(err)
	pool.Reset()
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	for range 2 {
		_, err = pool.Exec(t.Context(), `select trapeze.enqueue('k', args => (E'["\\"' || repeat('[', 6000) || '"]')::json, idempotency_key => 'key')`)
		is.NoErr(err)
	}
	is.Equal(pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.jobs`), 1)
}

func TestAFailedMigrationChangesNothing(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	_, err := pool.Exec(t.Context(), `create schema trapeze; create table trapeze.done ()`)
	is.NoErr(err)
	err = migrate.Up(t.Context(), url, "trapeze")
	is.True(err != nil && strings.Contains(err.Error(), "nothing was changed, because 00002_runs_and_partitions.sql failed: "))
	is.Equal(tables(t, pool, "trapeze"), 1) // only the table above
	_, err = pool.Exec(t.Context(), `drop table trapeze.done`)
	is.NoErr(err)
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
}

func TestCancelledMigration(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	is.NoErr(migrate.Up(t.Context(), url, "whole"))
	whole, done := tables(t, pool, "whole"), false
	for n := int64(3); !done; n += cutStride * (n + 1) {
		name := fmt.Sprint("part", n)
		err := migrate.Up(endsAfter(t, n), url, name)
		pgtest.Wait(t, "the locks are gone", func() bool { return locks(t, pool) == 0 })
		got := tables(t, pool, name)
		if done = err == nil; done {
			is.Equal(got, whole) // if Up reports success, the schema is complete
			continue
		}
		is.Equal(got, 0)                             // nothing was applied
		is.NoErr(migrate.Up(t.Context(), url, name)) // the next call completes the migration
		is.NoErr(schema.Check(t.Context(), pool, name))
	}
}

// endsAfter returns a context that is cancelled by the n-th call to its Done method, which occurs between two statements.
func endsAfter(t *testing.T, n int64) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c := &countdown{Context: ctx, cancel: cancel}
	c.left.Store(n)
	return c
}

type countdown struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func (c *countdown) Done() <-chan struct{} {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
	return c.Context.Done()
}

func TestMigrationCancelledDuringStatement(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	conn, err := pool.Acquire(t.Context())
	is.NoErr(err)
	_, err = conn.Exec(t.Context(), `select pg_advisory_lock(420022)`) // the migration that creates partitions waits for this lock
	is.NoErr(err)
	ctx, cancel := context.WithCancel(t.Context())
	up := make(chan error)
	go func() { up <- migrate.Up(ctx, url, "trapeze") }()
	pgtest.Wait(t, "a migration is running", func() bool {
		return pgtest.QueryOne[int](t, pool, `select count(*) from pg_locks where locktype = 'advisory' and objid = 420022 and not granted
			and database = (select oid from pg_database where datname = current_database())`) == 1
	})
	cancel()
	is.True(errors.Is(<-up, context.Canceled))
	conn.Release()
	pool.Reset()
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
}

func TestMigrateDownThenUp(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	before := shape(t, pool, "trapeze")
	for to := schema.Latest() - 1; to >= 0; to-- {
		is.NoErr(migrate.Down(t.Context(), url, "trapeze", to))
		want := schema.ErrTooOld
		if to == 0 {
			want = schema.ErrNoTables
		}
		is.True(errors.Is(schema.Check(t.Context(), pool, "trapeze"), want))
	}
	is.Equal(tables(t, pool, "trapeze"), 0) // only the migrations table is left
	status, err := migrate.Status(t.Context(), url, "trapeze")
	is.NoErr(err)
	is.Equal(len(status), known(t))
	for _, m := range status {
		is.True(m.AppliedAt.IsZero())
	}
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	is.Equal(shape(t, pool, "trapeze"), before)
}

// ofVersion returns a database that has been migrated back to an earlier version, and a pool of connections to it.
func ofVersion(t *testing.T, version int64) (url string, pool *pgxpool.Pool) {
	t.Helper()
	is := is.New(t)
	url = pgtest.EmptyURL(t)
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	is.NoErr(migrate.Down(t.Context(), url, "trapeze", version))
	return url, pgtest.Connect(t, url)
}

// While a migration waits for a table lock, all other statements queue behind it. It must therefore give up quickly.
func TestMigrationTableLockTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url, pool := ofVersion(t, 3) // the next migration creates a trigger on done_failed
	forgotten, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer forgotten.Rollback(context.WithoutCancel(t.Context()))
	_, err = forgotten.Exec(t.Context(), `select count(*) from trapeze.done_failed`)
	is.NoErr(err)
	up := make(chan error)
	go func() { up <- migrate.Up(t.Context(), url, "trapeze") }()
	for range 2 {
		pgtest.Wait(t, "the migration waits", func() bool {
			return pgtest.QueryOne[int](t, pool, `select count(*) from pg_locks where relation = 'trapeze.done_failed'::regclass and not granted
				and database = (select oid from pg_database where datname = current_database())`) == 1
		})
		_, err = pool.Exec(t.Context(), `insert into trapeze.done (id, state, outcome, reason, fence, event_no, epoch, attempt, crashes, priority, lane)
			select coalesce(max(id), 0) + 1, 'failed', 'error', 'error', 1, 1, 1, 1, 0, 10, 'default' from trapeze.done_failed`)
		is.NoErr(err) // the insert queues behind the migration for at most half a second, then succeeds
	}
	is.NoErr(forgotten.Rollback(t.Context()))
	is.NoErr(<-up)
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
}

func TestPrintedMigrationSQL(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"trapeze", "other_1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			upURL, printedURL := pgtest.EmptyURL(t), pgtest.EmptyURL(t)
			is.NoErr(migrate.Up(t.Context(), upURL, name))
			var sql bytes.Buffer
			is.NoErr(migrate.Print(&sql, name, 0))
			printed := pgtest.Connect(t, printedURL)
			_, err := printed.Exec(t.Context(), sql.String(), pgx.QueryExecModeSimpleProtocol)
			is.NoErr(err)
			up := pgtest.Connect(t, upURL)
			is.Equal(shape(t, printed, name), shape(t, up, name))
			is.NoErr(schema.Check(t.Context(), printed, name))                        // a pod accepts the schema
			is.NoErr(migrate.Up(t.Context(), printedURL, name))                       // later migrations can be applied on top of it
			is.True(name == "trapeze" || !strings.Contains(sql.String(), "trapeze.")) // the default schema's name no longer occurs
		})
	}
}

func TestUnsupportedSchemaVersion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	is.True(errors.Is(schema.Check(t.Context(), pool, "trapeze"), schema.ErrNoTables)) // an empty database
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
	reaches := func(version int64) {
		_, err := pool.Exec(t.Context(), `insert into trapeze.migrations (version_id, is_applied) values ($1, true)`, version)
		is.NoErr(err)
	}
	reaches(schema.Latest() + 1) // as if a newer pod had migrated the database during a rolling upgrade
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
	reaches(schema.Latest()/1000*1000 + 1000)
	is.True(errors.Is(schema.Check(t.Context(), pool, "trapeze"), schema.ErrTooNew))
}

func TestTwoSchemasInDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	pool := pgtest.Connect(t, url)
	for _, schema := range []string{"one_home", "two_home", "trapeze"} {
		is.NoErr(migrate.Up(t.Context(), url, schema))
	}
	is.Equal(shape(t, pool, "one_home"), shape(t, pool, "two_home"))
	is.NoErr(migrate.Down(t.Context(), url, "two_home", 0))
	is.NoErr(schema.Check(t.Context(), pool, "one_home"))
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
}

func TestSchemaNameRequiringQuotes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "Upper", "1st", "a-b", `a"b`, "a.b", strings.Repeat("a", 49)} {
		is := is.New(t)
		is.True(migrate.Up(t.Context(), "postgres://nowhere.invalid/", name) != nil)
		is.True(migrate.Print(&bytes.Buffer{}, name, 0) != nil)
	}
}

// locks counts the locks that only migrations take in this database.
func locks(t *testing.T, pool *pgxpool.Pool) int {
	return pgtest.QueryOne[int](t, pool, `select count(*) from pg_locks where locktype = 'advisory' and objid in (420020, 420022)
		and database = (select oid from pg_database where datname = current_database())`)
}

// tables counts the relations, functions and sequences of a schema, except the migrations table.
func tables(t *testing.T, pool *pgxpool.Pool, schema string) int {
	return pgtest.QueryOne[int](t, pool, `select (select count(*) from pg_class where relnamespace = to_regnamespace($1) and relname !~ '^migrations')
		+ (select count(*) from pg_proc where pronamespace = to_regnamespace($1))`, schema)
}

// shape describes all objects of a schema as text, without the schema's name.
func shape(t *testing.T, pool *pgxpool.Pool, schema string) string {
	t.Helper()
	result, err := pool.Query(t.Context(), `
		select format('%s %s %s', c.relkind, c.relname, coalesce(array_to_string(c.reloptions, ','), '')) as line
		from pg_class c where c.relnamespace = to_regnamespace($1)
		union all
		select format('column %s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
			pg_get_expr(d.adbin, d.adrelid))
		from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
		where c.relnamespace = to_regnamespace($1) and a.attnum > 0 and c.relkind in ('r', 'p')
		union all
		select format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
		from pg_constraint where connamespace = to_regnamespace($1)
		union all
		select pg_get_indexdef(c.oid) from pg_class c where c.relnamespace = to_regnamespace($1) and c.relkind in ('i', 'I')
		union all
		select pg_get_viewdef(c.oid) from pg_class c where c.relnamespace = to_regnamespace($1) and c.relkind = 'v'
		union all
		select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = to_regnamespace($1)
		order by 1`, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), schema, "schema")
}

func TestMigrationStatusEmptyDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	list, err := migrate.Status(t.Context(), url, "trapeze")
	is.NoErr(err)
	is.True(len(list) > 0)
	is.True(list[0].AppliedAt.IsZero()) // pending
	var exists bool
	is.NoErr(pgtest.Connect(t, url).QueryRow(t.Context(), `select to_regnamespace('trapeze') is not null`).Scan(&exists))
	is.True(!exists) // Status creates nothing
}

// A busy pod's statements write to several tables that migrations change. A migration that locked these tables one by one would deadlock with
// one of those statements every time.
func TestMigrationLocksDuringPodLoad(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url, pool := ofVersion(t, 3) // the next migration creates triggers on done_failed, then on done_cancelled
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stop()
	for range 4 {
		busy.Go(func() {
			for ctx.Err() == nil { // each statement locks the tables in this order, and holds the locks for a moment
				_, err := pool.Exec(t.Context(), `begin; lock table trapeze.done_cancelled, trapeze.done_failed in row exclusive mode; select pg_sleep(0.01); commit`,
					pgx.QueryExecModeSimpleProtocol)
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
	is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
}

// While a publication exists, PostgreSQL refuses updates and deletes of a table without a replica identity.
func TestReplicaIdentityOfTables(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `drop table trapeze.done_failed_`+time.Now().UTC().Format("20060102")+`; select trapeze.ensure_partitions(1)`)
	is.NoErr(err)
	is.Equal(len(pgtest.Column[string](t, pool, `
		select c.relname::text from pg_class c where c.relnamespace = 'trapeze'::regnamespace and c.relkind = 'r' and not (c.relreplident = 'f'
			or exists (select from pg_index i where i.indrelid = c.oid and i.indisvalid
				and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end))
		order by 1`)), 0)
}

func TestEveryTriggerIsEnabledAlways(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `drop table trapeze.done_failed_`+time.Now().UTC().Format("20060102")+`; select trapeze.ensure_partitions(1)`)
	is.NoErr(err)
	is.Equal(len(pgtest.Column[string](t, pool, `select format('%s on %s', t.tgname, c.relname) from pg_trigger t join pg_class c on c.oid = t.tgrelid
		where c.relnamespace = 'trapeze'::regnamespace and t.tgconstraint = 0 and t.tgenabled <> 'A' order by 1`)), 0)
	is.True(len(pgtest.Column[string](t, pool, `select tgname::text from pg_trigger where tgenabled = 'A'`)) >= 8)
}

// The comments are the documentation of the schema: psql shows them with \d+ and \di+. The index of a primary key needs none.
func TestTableAndIndexComments(t *testing.T) {
	is := is.New(t)
	is.Equal(len(pgtest.Column[string](t, pgtest.Pool(t), `
		select format('%s %s', c.relkind, c.relname) from pg_class c
		where c.relnamespace = 'trapeze'::regnamespace and (c.relkind in ('p', 'v', 'm') or c.relkind in ('r', 'i', 'I') and not c.relispartition)
			and not exists (select from pg_index i where i.indexrelid = c.oid and (i.indisprimary or i.indrelid in (select inhrelid from pg_inherits)))
			and coalesce(obj_description(c.oid, 'pg_class'), '') !~ case when c.relkind in ('i', 'I') then '[?]' else '[.]$' end
		order by 1`)), 0)
}

// pg_restore --schema-only creates the tables, but not the rows of the migrations table.
func TestSchemaRestoredWithoutData(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{`delete from trapeze.migrations`, `delete from trapeze.migrations where version_id > 0`, `drop table trapeze.migrations`} {
		is := is.New(t)
		url := pgtest.URL(t)
		pool := pgtest.Connect(t, url)
		_, err := pool.Exec(t.Context(), lost)
		is.NoErr(err)
		is.True(errors.Is(schema.Check(t.Context(), pool, "trapeze"), schema.ErrNoData))
		_, err = migrate.Status(t.Context(), url, "trapeze")
		is.True(errors.Is(err, schema.ErrNoData))
		is.True(errors.Is(migrate.Up(t.Context(), url, "trapeze"), schema.ErrNoData))
		_, err = pool.Exec(t.Context(), `drop schema trapeze cascade`) // the remedy
		is.NoErr(err)
		is.NoErr(migrate.Up(t.Context(), url, "trapeze"))
		is.NoErr(schema.Check(t.Context(), pool, "trapeze"))
	}
}
