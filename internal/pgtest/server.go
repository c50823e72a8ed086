package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// ServerVar is the environment variable that holds the URL of a server with a [Template].
const ServerVar = "PGTEST_SERVER"

// SeedVar is the environment variable that holds the path of a stopped server's home (see [MakeSeed]).
const SeedVar = "PGTEST_SEED"

// Template is the name of the migrated database on a server started by [Start].
const Template = "trapeze_test_template"

// Schema is the schema that contains Trapeze's tables in migrated databases.
const Schema = "trapeze"

// settings suit many concurrent tests whose databases live for seconds. JIT is off, as on the store's connections, because compiling their
// statements takes longer than running them. Commits are synced, because the doctor requires it and a sync in memory costs next to nothing.
// The doctor also requires autovacuum, but its workers would find almost nothing to do, so they run rarely.
var settings = map[string]string{"jit": "off", "max_connections": "400", "autovacuum_naptime": "10min"}

// SharedServer returns the URL of the server that the whole command shares, or an empty string. It does not call os.Getenv, because the go
// command would then treat the URL as a test input. Since the port changes with every run, no cached test result could be reused.
func SharedServer() string {
	url, _ := syscall.Getenv(ServerVar)
	return url
}

// SharedSeed returns the home that new servers copy, or an empty string if there is none. Like [Server], it does not call os.Getenv.
func SharedSeed() string {
	dir, _ := syscall.Getenv(SeedVar)
	return dir
}

// MakeSeed creates the home of a stopped server, which other servers of the test command copy instead of running initdb. The seed is in a
// subfolder of in's home, so it is removed when in stops.
func MakeSeed(ctx context.Context, in *pgembed.Server) (dir string, err error) {
	dir = filepath.Join(in.Dir(), "seed")
	server, err := pgembed.Start(ctx, pgembed.Options{DataDir: dir, Seed: SharedSeed()})
	if err != nil {
		return "", err
	}
	return dir, server.Stop()
}

// GivenServer returns DATABASE_URL if the tests can use its server. Otherwise it returns an empty string, and the tests start a server. Tests
// need a superuser, because some of them create roles and switch to them.
func GivenServer(ctx context.Context) (url string, err error) {
	url = os.Getenv("DATABASE_URL")
	if url == "" {
		return "", nil
	}
	conn, err := Dial(ctx, url)
	if err != nil {
		return "", fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var super bool
	if err := conn.QueryRow(ctx, "select rolsuper from pg_roles where rolname = current_user").Scan(&super); err != nil || !super {
		return "", err
	}
	return url, nil
}

// StartServer starts a server with a [Template]. The data is in memory if there is enough space.
func StartServer(ctx context.Context) (*pgembed.Server, error) {
	server, err := pgembed.Start(ctx, pgembed.Options{TempDir: pgembed.MemoryDir(), Seed: SharedSeed(), Settings: settings})
	if err != nil {
		return nil, err
	}
	if err := MakeTemplate(ctx, server.URL(), Template); err != nil {
		_ = server.Stop()
		return nil, err
	}
	return server, nil
}

// fewDaysSQL keeps only the partitions for yesterday, today and tomorrow, and keeps pods from creating more, because every session that
// reads a finished job loads all partitions. With partitions for nine days, the server took a fifth more CPU time for package runner's
// tests. [AllDaysSQL] undoes this change.
const fewDaysSQL = `
do $$ declare day text; begin
	for day in select c.oid::regclass from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where to_date(substring(c.relname from '_(\d{8})$'), 'YYYYMMDD') > (now() at time zone 'UTC')::date + 1
	loop execute 'drop table ' || day; end loop;
end $$;
alter function trapeze.missing_days(integer) rename to all_missing_days;
create function trapeze.missing_days(days_ahead integer) returns table (parent text, day date)
	language sql stable security definer set search_path = pg_catalog, trapeze, pg_temp
	return trapeze.all_missing_days(least(days_ahead, 1));
revoke execute on function trapeze.missing_days(integer) from public`

// AllDaysSQL makes pods create partitions for all days ahead, in a copy of a [Template]. It must be run only once per database.
const AllDaysSQL = `drop function trapeze.missing_days(integer); alter function trapeze.all_missing_days(integer) rename to missing_days;
select trapeze.ensure_partitions(7)`

// MakeTemplate creates a migrated database on the server at url, with partitions for three days.
func MakeTemplate(ctx context.Context, url, name string) error {
	conn, err := Dial(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "create database "+name+" template template0"); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	if err := migrate.Up(ctx, WithDatabase(url, name), Schema); err != nil {
		return err
	}
	migrated, err := Dial(ctx, WithDatabase(url, name))
	if err != nil {
		return err
	}
	defer migrated.Close(context.WithoutCancel(ctx))
	if _, err := migrated.Exec(ctx, fewDaysSQL); err != nil {
		return fmt.Errorf("drop most days from the template: %w", err)
	}
	return nil
}

// Dial opens one connection. The connection string may contain pool parameters.
func Dial(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// WithParameter adds a parameter, such as sslmode=disable, to the connection string.
func WithParameter(conn, parameter string) string {
	switch {
	case !strings.Contains(conn, "://"):
		return conn + " " + parameter
	case strings.Contains(conn, "?"):
		return conn + "&" + parameter
	}
	return conn + "?" + parameter
}

// WithDatabase returns the connection string with a different database name. It also removes pool parameters from URLs. It edits the text,
// because package net/url does not accept URLs with several hosts.
func WithDatabase(conn, name string) string {
	scheme, rest, isURL := strings.Cut(conn, "://")
	if !isURL {
		return conn + " dbname=" + name // in a key/value string, the last value of a repeated keyword applies
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, _, _ := strings.Cut(rest, "/")
	var kept []string
	for p := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(p, "=")
		if p != "" && key != "dbname" && key != "database" && !strings.HasPrefix(key, "pool_") {
			kept = append(kept, p)
		}
	}
	url := scheme + "://" + authority + "/" + name
	if len(kept) > 0 {
		url += "?" + strings.Join(kept, "&")
	}
	return url
}
