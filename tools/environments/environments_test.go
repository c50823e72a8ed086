//go:build environments

package environments

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// environment is one line of the table. In its statements, @db, @role and @schema stand for the environment's own.
type environment struct {
	name    string
	create  string // options of create database
	setting string // a setting of the role, as in alter role ... set
	before  string // statements of a superuser before the migration
	after   string // statements of a superuser after the migration
	schema  string // default trapeze
	url     string // parameters of the connection string
	pool    int    // size of the application's pool; default 4
	pooler  int    // pgbouncer's server connections; default 0: no pgbouncer
	session bool   // pgbouncer in session mode instead of transaction mode
	lines   string // further lines of pgbouncer's configuration
	hidden  bool   // the pods' options do not declare pgbouncer
	app     bool   // pods run as the role trapeze_app of docs/grants.md, not as the owner
	wall    bool   // the wall clocks of pods and clients jump; the database's does not
	since   int    // the first major version of PostgreSQL that has the setting; default: all
	refused string // the migration is refused with this text
	starts  string // four pods do not all start, and the log of one has this text
}

// securesRows enables row-level security for each new table, without a policy.
const securesRows = `create function public.secure() returns event_trigger language plpgsql security definer as $$ declare c record; begin
		for c in select object_identity from pg_event_trigger_ddl_commands() where command_tag = 'CREATE TABLE' loop execute 'alter table ' || c.object_identity || ' enable row level security'; end loop; end $$;
		create event trigger @db_secure on ddl_command_end when tag in ('CREATE TABLE') execute function public.secure()`

var environments = []environment{
	{name: "defaults"},
	{name: "timeout of statements", setting: "statement_timeout = '3s'"},
	{name: "timeout of locks", setting: "lock_timeout = '500ms'"},
	{name: "timeout of idle transactions", setting: "idle_in_transaction_session_timeout = '500ms'"},
	{name: "timeout of idle sessions", setting: "idle_session_timeout = '500ms'"},
	{name: "timeout of transactions", setting: "transaction_timeout = '3s'", since: 17},
	{name: "isolation repeatable read", setting: "default_transaction_isolation = 'repeatable read'"},
	{name: "isolation serializable", setting: "default_transaction_isolation = 'serializable'"},
	{name: "transactions deferrable", setting: "default_transaction_deferrable = on"},
	{name: "read-only by default", setting: "default_transaction_read_only = on", refused: "default_transaction_read_only is on"},
	{name: "asynchronous commits", setting: "synchronous_commit = off"},
	{name: "DateStyle German", setting: "datestyle = 'German, DMY'"},
	{name: "DateStyle SQL", setting: "datestyle = 'SQL, DMY'"},
	{name: "IntervalStyle", setting: "intervalstyle = 'sql_standard'"},
	{name: "bytea_output", setting: "bytea_output = 'escape'"},
	{name: "zone of Nepal", setting: "timezone = 'Asia/Kathmandu'"},
	{name: "zone of Lord Howe", setting: "timezone = 'Australia/Lord_Howe'"},
	{name: "zone ahead by 14 hours", setting: "timezone = 'Pacific/Kiritimati'"},
	{name: "extra_float_digits", setting: "extra_float_digits = -15"},
	{name: "standard_conforming_strings", setting: "standard_conforming_strings = off"},
	{name: "backslash_quote", setting: "backslash_quote = off"},
	{name: "transform_null_equals", setting: "transform_null_equals = on"},
	{name: "quote_all_identifiers", setting: "quote_all_identifiers = on"},
	{name: "array_nulls", setting: "array_nulls = off"},
	{name: "xmloption", setting: "xmloption = document"},
	{name: "client_encoding LATIN1", setting: "client_encoding = 'LATIN1'", starts: "add client_encoding=UTF8"},
	{name: "client_encoding LATIN1, UTF8 in the address", setting: "client_encoding = 'LATIN1'", url: "client_encoding=UTF8"},
	{name: "messages in verbose form", setting: "log_error_verbosity = verbose"},
	{name: "messages from panic only", setting: "client_min_messages = error"},
	{name: "jit", setting: "jit = on"},
	{name: "jit for every statement", setting: "jit_above_cost = 0"},
	{name: "plans always generic", setting: "plan_cache_mode = force_generic_plan"},
	{name: "plans always custom", setting: "plan_cache_mode = force_custom_plan"},
	{name: "no index scans", setting: "enable_indexscan = off"},
	{name: "no bitmap scans", setting: "enable_bitmapscan = off"},
	{name: "no sequential scans", setting: "enable_seqscan = off"},
	{name: "no nested loops", setting: "enable_nestloop = off"},
	{name: "parallel plans for everything", setting: "parallel_setup_cost = 0"},
	{name: "partition-wise plans", setting: "enable_partitionwise_aggregate = on"},
	{name: "constraint_exclusion", setting: "constraint_exclusion = on"},
	{name: "little memory", setting: "work_mem = '64kB'"},
	{name: "one level of join", setting: "join_collapse_limit = 1"},
	{name: "search_path empty", setting: "search_path = ''"},
	{name: "search_path of others", setting: "search_path = shadow", before: "create schema shadow; grant usage on schema shadow to @role; create table shadow.jobs (id text); " +
		"create function shadow.now() returns timestamptz language sql as 'select null::timestamptz'"},
	{name: "row_security", setting: "row_security = off"},
	{name: "row level security", after: "alter table @schema.jobs enable row level security; alter table @schema.jobs force row level security; create policy all_rows on @schema.jobs using (true)"},
	{name: "row level security, not the owner", app: true, after: "alter table @schema.live enable row level security; create policy all_rows on @schema.live using (true)"},
	{name: "session_replication_role", setting: "session_replication_role = replica"},
	{name: "event trigger that logs", before: `create table public.ddl (tag text); grant insert on public.ddl to public;
		create function public.log_ddl() returns event_trigger language plpgsql as $$ begin insert into public.ddl values (tg_tag); end $$;
		create event trigger @db_log on ddl_command_end execute function public.log_ddl()`},
	{name: "event trigger that logs, unqualified", after: `create table public.ddl (tag text); grant insert on public.ddl to public;
		create function public.log_ddl() returns event_trigger language plpgsql as $$ begin insert into ddl values (tg_tag); end $$;
		create event trigger @db_log on ddl_command_end execute function public.log_ddl()`},
	{name: "event trigger that forbids DDL", after: `create function public.no_ddl() returns event_trigger language plpgsql as $$ begin raise exception 'no DDL'; end $$;
		create event trigger @db_no on ddl_command_start execute function public.no_ddl()`},
	{name: "event trigger that secures rows", before: securesRows},
	{name: "event trigger that secures rows, not the owner", app: true, before: securesRows, starts: "row-level security hides its rows"},
	{name: "publication for all tables", after: "create publication everything for all tables"},
	{name: "publication via the root", after: "create publication everything for all tables with (publish_via_partition_root = true)"},
	{name: "publication with a slot", before: "select pg_create_logical_replication_slot('@db', 'pgoutput')", after: "create publication everything for all tables"},
	{name: "publication of the schema", after: "create publication ours for tables in schema @schema", since: 15},
	{name: "generated column of others", after: "alter table @schema.done add mine text generated always as (upper(reason)) stored"},
	{name: "role of docs/grants.md", app: true},
	{name: "schema named work", schema: "work"},
	{name: "schema named work, not the owner", schema: "work", app: true},
	{name: "schema with a digit", schema: "jobs_2"},
	{name: "collation en_US", create: "locale 'en_US.UTF-8'"},
	{name: "collation ICU", create: "locale_provider icu icu_locale 'en-US' locale 'C'", since: 15},
	{name: "encoding LATIN1", create: "encoding 'LATIN1' locale 'C'", url: "client_encoding=UTF8"},
	{name: "encoding SQL_ASCII", create: "encoding 'SQL_ASCII' locale 'C'", url: "client_encoding=UTF8"},
	{name: "encoding EUC_JP", create: "encoding 'EUC_JP' locale 'C'", url: "client_encoding=UTF8"},
	{name: "pool of one", pool: 1},
	{name: "protocol simple", url: "default_query_exec_mode=simple_protocol"},
	{name: "protocol exec", url: "default_query_exec_mode=exec"},
	{name: "protocol describe", url: "default_query_exec_mode=cache_describe"},
	{name: "pgbouncer with one connection", pooler: 1},
	{name: "pgbouncer with three", pooler: 3},
	{name: "pgbouncer with ten", pooler: 10},
	{name: "pgbouncer, pool of one", pooler: 3, pool: 1},
	{name: "pgbouncer by session, one", pooler: 1, session: true, starts: "pool_mode"},
	{name: "pgbouncer by session, three", pooler: 3, session: true, starts: "pool_mode"},
	{name: "pgbouncer by session, ten", pooler: 10, session: true, starts: "pool_mode"},
	{name: "pgbouncer by session, forty", pooler: 40, session: true},
	{name: "wall clocks of pods jump", wall: true},
	{name: "pgbouncer that drops settings", pooler: 3, lines: dropped},
	{name: "pgbouncer that drops settings, not declared", pooler: 3, lines: dropped, hidden: true, starts: "drops settings"},
	{name: "pgbouncer by session that drops settings, not declared", pooler: 40, session: true, lines: dropped, hidden: true, starts: "drops settings"},
	{name: "pgbouncer, not declared", pooler: 3, hidden: true, starts: "accepts no settings"},
}

// dropped makes pgbouncer ignore the settings that a pod sends if its options do not declare a pooler.
const dropped = "ignore_startup_parameters = plan_cache_mode,enable_hashjoin,enable_mergejoin,enable_seqscan,enable_bitmapscan,jit," +
	"random_page_cost,seq_page_cost,idle_in_transaction_session_timeout,idle_session_timeout,lock_timeout"

const page = "../../docs/where-it-runs.md"

var update = flag.Bool("update", false, "write the table of environments to "+page)

// TestPageListsEnvironments compares the table of environments with the one in the documentation.
func TestPageListsEnvironments(t *testing.T) {
	const begin, end = "<!-- environments -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no lines %q and %q", page, begin, end)
	}
	table := "| environment | how it differs |\n|---|---|\n"
	for _, e := range environments {
		table += "| " + e.name + " | " + e.words() + " |\n"
	}
	want := head + begin + table + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s does not list the environments of this test: run it with -update", page)
	}
}

// words describes the environment for the documentation.
func (e environment) words() string {
	var parts []string
	code := func(before, text string) {
		switch {
		case len(text) > 120: // the name of the environment describes long statements
			parts = append(parts, "SQL of the test")
		case text != "":
			parts = append(parts, before+"`"+strings.Join(strings.Fields(text), " ")+"`")
		}
	}
	code("", e.create)
	code("", e.setting)
	code("", e.before)
	code("", e.after)
	code("schema ", e.schema)
	code("", e.url)
	if e.pooler > 0 {
		parts = append(parts, fmt.Sprintf("pgbouncer, `pool_mode = %s`, `default_pool_size = %d`", e.mode(), e.pooler))
	}
	if e.lines != "" {
		parts = append(parts, "`ignore_startup_parameters` lists all settings of a pod")
	}
	if e.hidden {
		parts = append(parts, "neither `BehindPooler` nor `DirectURL` is set")
	}
	if e.pool > 0 {
		parts = append(parts, fmt.Sprint("application pool of ", e.pool))
	}
	if e.app {
		parts = append(parts, "as `trapeze_app`")
	}
	if e.wall {
		parts = append(parts, "pods' clocks are set ahead and back by five minutes and by ten days; the database's clock is not")
	}
	if e.since > 0 {
		parts = append(parts, fmt.Sprintf("PostgreSQL %d or newer", e.since))
	}
	if e.refused != "" {
		parts = append(parts, "refused")
	}
	if e.starts != "" {
		parts = append(parts, "refused")
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "|", "\\|")
}

func TestEnvironments(t *testing.T) {
	server := pgtest.Server(t, "max_connections", "400", "wal_level", "logical", "max_replication_slots", "20", "jit", "off")
	for i, e := range environments {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			e.run(t, server, fmt.Sprintf("environment_%d", i+1))
		})
	}
}

// run creates the environment's database and role, and runs the workload there.
func (e environment) run(t *testing.T, server *pgembed.Server, name string) {
	if e.wall && setWallClock == nil {
		runWithWallClock(t)
		return
	}
	w := &world{t: t, wall: e.wall, config: podConfig{Schema: e.schema, Pooled: e.pooler > 0 && !e.hidden}}
	text := strings.NewReplacer("@db", name, "@role", name, "@schema", w.schema())
	cluster := pgtest.Connect(t, server.URL())
	if version := pgtest.QueryOne[int](t, cluster, "select current_setting('server_version_num')::int / 10000"); version < e.since {
		t.Skipf("PostgreSQL %d does not have this setting: run this test with PGBIN of version %d or newer", version, e.since)
	}
	if locale := "en_US.UTF-8"; strings.Contains(e.create, locale) && !pgtest.QueryOne[bool](t, cluster, "select exists (select from pg_collation where collname = 'en_US.utf8')") {
		t.Skip("the operating system has no locale en_US.UTF-8: create it before the server's initdb, with localedef -i en_US -f UTF-8 en_US.UTF-8")
	}
	pgtest.Exec(t, cluster, text.Replace("create role @role login password 'secret'"))
	pgtest.Exec(t, cluster, text.Replace("create database @db template template0 owner @role "+e.create))
	w.admin = pgtest.Connect(t, pgtest.WithDatabase(server.URL(), name))
	run := func(statements string) {
		t.Helper()
		if _, err := w.admin.Exec(t.Context(), text.Replace(statements), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", statements, err)
		}
	}
	run("create table public.effects (job bigint, fence bigint); create table public.orders (job bigint); grant all on public.effects, public.orders to public")
	run(e.before)
	for setting := range strings.SplitSeq(e.setting, ";") {
		if setting != "" {
			run("alter role @role set " + setting)
		}
	}

	direct := fmt.Sprintf("postgres://%s:secret@127.0.0.1:%d/%[1]s?sslmode=disable", name, server.Port())
	if e.url != "" {
		direct = pgtest.WithParameter(direct, e.url)
	}
	w.host = pgtest.Connect(t, direct)
	switch err := w.migrate(); {
	case e.refused != "":
		if err == nil || !strings.Contains(err.Error(), e.refused) {
			t.Errorf("migrate: %v; want an error that contains %q", err, e.refused)
		}
		return
	case err != nil:
		t.Fatalf("migrate: %v", err)
	}
	run(e.after)
	if e.app {
		run(grants(t, w.schema(), name+"_app"))
		direct = strings.Replace(direct, name, name+"_app", 1)
	}
	w.config.URL = direct
	if e.pooler > 0 {
		if !e.hidden {
			w.config.Direct = direct
		}
		w.config.URL = pgtest.WithParameter(pgtest.PoolerInMode(t, direct, e.mode(), e.pooler, e.lines), "default_query_exec_mode=exec")
	}
	size := 4
	if e.pool > 0 {
		size = e.pool
	}
	w.config.URL = pgtest.WithParameter(w.config.URL, fmt.Sprint("pool_max_conns=", size))
	if e.starts != "" {
		w.failToStart(e.starts)
		return
	}
	w.host = pgtest.Connect(t, w.config.URL)
	w.run()
}

// mode returns the pool mode of pgbouncer.
func (e environment) mode() string {
	if e.session {
		return "session"
	}
	return "transaction"
}

// grants returns the statements that docs/grants.md lists for roles that run jobs and for producers in SQL, for one new role.
func grants(t *testing.T, schema, role string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/grants.md")
	if err != nil {
		t.Fatal(err)
	}
	statements := "create role " + role + " login password 'secret';"
	for heading, name := range map[string]string{"## A role that runs jobs": "trapeze_app", "## A producer in SQL": "trapeze_producer"} {
		_, section, found := strings.Cut(string(page), heading)
		_, section, code := strings.Cut(section, "```sql\n")
		section, _, end := strings.Cut(section, "```")
		if !found || !code || !end {
			t.Fatalf("docs/grants.md: no statements below %q", heading)
		}
		statements += strings.NewReplacer(name, role, "trapeze.", schema+".", "schema trapeze ", "schema "+schema+" ").Replace(section)
	}
	return statements
}
