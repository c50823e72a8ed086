package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestImitationPostgreSQLVersion(t *testing.T) {
	t.Parallel()
	for database, versions := range map[string][]string{
		// The versions are quoted from the products' issue trackers and documentation, except for Aurora DSQL's, which
		// Dreamescaper/dsql-emulator recorded on a cluster in test/conformance/golden/environment.json (September 2026).
		"CockroachDB": {
			"CockroachDB CCL v25.2.22 (x86_64-pc-linux-gnu, built 2026/07/28 18:01:24, go1.23.12)",
			"CockroachDB OSS v19.1.11 (x86_64-unknown-linux-gnu, built 2020/09/02 07:28:03, go1.11.6)",
		},
		"YugabyteDB": {
			"PostgreSQL 15.2-YB-2.25.0.0-b0 on aarch64-unknown-linux-gnu, compiled by clang version 17.0.6, 64-bit",
			"PostgreSQL 11.2-YB-2.20.1.1-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6, 64-bit",
		},
		"Redshift": {
			"PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017 (Red Hat 3.4.2-6.fc3), Redshift 1.0.12103",
		},
		"Aurora DSQL": {"PostgreSQL 16"},
	} {
		for _, version := range versions {
			t.Run(database, func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				err := schema.Check(t.Context(), pgtest.Connect(t, pgtest.Imitation(t, version)), "trapeze")
				unsupported, ok := errors.AsType[*schema.UnsupportedError](err)
				is.True(ok) // the first statement identifies the database; the server rejects all others
				is.Equal(unsupported.Database, database)
				is.True(strings.HasPrefix(err.Error(), database+" cannot run Trapeze, because it "))
				is.True(strings.Contains(err.Error(), ": use PostgreSQL 14 or newer"))
			})
		}
	}
}

// Vendors that build PostgreSQL themselves add to the output of version(), but keep its format.
func TestVendorPostgreSQLVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{
		"PostgreSQL 17.6 (Debian 17.6-1.pgdg13+1) on x86_64-pc-linux-gnu, compiled by gcc (Debian 14.2.0-19) 14.2.0, 64-bit",
		"PostgreSQL 16.4 on aarch64-unknown-linux-gnu, compiled by gcc (GCC) 9.5.0, 64-bit",                  // RDS, Aurora PostgreSQL
		"PostgreSQL 18beta1 on x86_64-windows, compiled by msvc-19.43.34808, 64-bit",                         // a beta
		"PostgreSQL 17.5 (6bc9ef8) on aarch64-unknown-linux-gnu, compiled by gcc (Debian 12.2.0-14), 64-bit", // Neon
	} {
		is := is.New(t)
		err := schema.CheckServer(t.Context(), pgtest.Connect(t, pgtest.Imitation(t, version)), "trapeze")
		_, unsupported := errors.AsType[*schema.UnsupportedError](err)
		is.True(!unsupported) // the version is accepted, although the imitation rejects the next statement
		is.True(err != nil)
	}
}

func TestAuroraDSQLRefusedByCatalog(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	is.NoErr(schema.Check(t.Context(), pool, pgtest.Schema))
	_, err := pool.Exec(t.Context(), `create schema sys; create table sys.jobs (id int)`)
	is.NoErr(err)
	is.NoErr(schema.Check(t.Context(), pool, pgtest.Schema)) // a user can have a schema with that name
	_, err = pool.Exec(t.Context(), `create view sys.iam_pg_role_mappings as select 'app' as pg_role_name, 'arn:aws:iam::1:role/app' as arn`)
	is.NoErr(err)
	unsupported, ok := errors.AsType[*schema.UnsupportedError](schema.Check(t.Context(), pool, pgtest.Schema))
	is.True(ok)
	is.Equal(unsupported.Database, "Aurora DSQL")
}

func TestCitusDistributedTables(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	// This is the table of Citus 13, from src/backend/distributed/sql/citus--8.0-1.sql and later migrations.
	_, err := pool.Exec(t.Context(), `set allow_system_table_mods = on;
		create table pg_catalog.pg_dist_partition (logicalrelid regclass not null, partmethod "char" not null, partkey text,
			colocationid integer default 0 not null, repmodel "char" default 's' not null, autoconverted boolean default false not null);
		set allow_system_table_mods = off;
		create table public.orders (id bigint);
		insert into pg_dist_partition values ('public.orders', 'h', '{VAR}', 1, 's')`)
	is.NoErr(err)
	is.NoErr(schema.Check(t.Context(), pool, pgtest.Schema)) // the application's tables can be distributed

	_, err = pool.Exec(t.Context(), `insert into pg_dist_partition values ('trapeze.jobs', 'n', null, 0, 's')`)
	is.NoErr(err)
	is.NoErr(schema.Check(t.Context(), pool, pgtest.Schema)) // a local table that Citus manages

	for _, row := range map[string]string{
		"distributed":             `'trapeze.live', 'h', '{VAR}', 2, 's'`,
		"reference":               `'trapeze.live', 'n', null, 3, 't'`,
		"in a distributed schema": `'trapeze.live', 'n', null, 4, 's'`,
	} {
		_, err = pool.Exec(t.Context(), `delete from pg_dist_partition where logicalrelid = 'trapeze.live'::regclass; insert into pg_dist_partition values (`+row+`)`)
		is.NoErr(err)
		err = schema.Check(t.Context(), pool, pgtest.Schema)
		_, unsupported := errors.AsType[*schema.UnsupportedError](err)
		is.True(unsupported)
		is.True(strings.HasPrefix(err.Error(), "Citus cannot run Trapeze, because it has distributed the table trapeze.live "))
	}
}

func TestReservedSchemaNamesAreRefused(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	rows, err := pgtest.Pool(t).Query(t.Context(), `select word from pg_get_keywords() where catcode <> 'U'`)
	is.NoErr(err)
	words, err := pgx.CollectRows(rows, pgx.RowTo[string])
	is.NoErr(err)
	for _, name := range append(words, "order", "user", "information_schema", "pg_x", "pg_catalog", "Jobs", "") {
		is.True(schema.ValidName(name) != nil) // such a name needs quotes, or belongs to PostgreSQL
	}
	for _, name := range []string{"trapeze", "public", "jobs", "orders", "pgx"} {
		is.NoErr(schema.ValidName(name))
	}
	is.Equal(schema.ValidName("order").Error(), `schema name "order" is a reserved word in SQL: use another name, such as trapeze_order`)
}

// Row-level security without a policy makes every table look empty to a role that does not own it. Some hosts enable it for each new table.
func TestRowsHiddenByRowSecurity(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	owner := pgtest.Connect(t, url)
	role, as := pgtest.Role(t, url)
	pgtest.Exec(t, owner, `grant usage on schema trapeze to `+role+`; grant select on all tables in schema trapeze to `+role)
	app := pgtest.Connect(t, as)
	for _, table := range []string{"migrations", "live", "done"} {
		pgtest.Exec(t, owner, `alter table trapeze.`+table+` enable row level security`)
		err := schema.Check(t.Context(), app, pgtest.Schema)
		is.True(errors.Is(err, schema.ErrRowSecurity))
		is.True(!errors.Is(err, schema.ErrNoData)) // whose remedy is to drop the schema
		is.True(strings.Contains(err.Error(), "role "+role+" sees no row of trapeze."+table))
		is.NoErr(schema.Check(t.Context(), owner, pgtest.Schema))

		pgtest.Exec(t, owner, `create policy others on trapeze.`+table+` to pg_monitor using (true); create policy adds on trapeze.`+table+` for insert to `+role+` with check (true)`)
		is.True(errors.Is(schema.Check(t.Context(), app, pgtest.Schema), schema.ErrRowSecurity))
		pgtest.Exec(t, owner, `create policy all_rows on trapeze.`+table+` to `+role+` using (true)`)
		is.NoErr(schema.Check(t.Context(), app, pgtest.Schema))
	}
}
