package env

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// oldestPostgres is the oldest major version of PostgreSQL that supports all of Trapeze's statements.
const oldestPostgres = 14

// Errors of [Config.Open] that can be fixed by changing DATABASE_URL.
var (
	// ErrDatabaseURL reports that DATABASE_URL is not set or cannot be parsed, or that it refers to a PostgreSQL server that is too old or
	// to a different database, such as CockroachDB.
	ErrDatabaseURL = errors.New("DATABASE_URL")
	// ErrReadOnly reports that the server accepts no writes: it is a standby, or default_transaction_read_only is on.
	ErrReadOnly = dburl.ErrReadOnly
)

// Open opens a pool for DATABASE_URL. It returns an error unless the server responds, accepts writes and runs PostgreSQL 14 or newer,
// rather than a database that imitates it. If the URL lists several hosts, Open connects to the one that accepts writes. The caller closes
// the pool.
func (c Config) Open(ctx context.Context) (*pgxpool.Pool, error) { return c.open(ctx, true) }

// OpenAny is like [Config.Open], but also accepts a read-only server, for programs that only read.
func (c Config) OpenAny(ctx context.Context) (*pgxpool.Pool, error) { return c.open(ctx, false) }

func (c Config) open(ctx context.Context, writes bool) (*pgxpool.Pool, error) {
	if c.DatabaseURL == "" {
		return nil, fmt.Errorf("%w is not set: want postgres://user@host/database", ErrDatabaseURL)
	}
	settings, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDatabaseURL, err)
	}
	if c.Options.DirectURL != "" { // with a transaction pooler, sessions must not keep state
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	dburl.UseUTF8(settings.ConnConfig)
	if writes {
		dburl.RequireWrites(settings.ConnConfig, c.Options.DirectURL != "")
	}
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDatabaseURL, err)
	}
	if err := c.check(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// check returns an error unless the server responds and can run Trapeze.
func (c Config) check(ctx context.Context, pool *pgxpool.Pool) error {
	err := schema.CheckServer(ctx, pool, c.Options.Schema)
	if _, unsupported := errors.AsType[*schema.UnsupportedError](err); unsupported {
		return fmt.Errorf("%w: %w", ErrDatabaseURL, err)
	}
	var number int
	if err == nil {
		err = pool.QueryRow(ctx, `select current_setting('server_version_num')::int`).Scan(&number)
	}
	if err != nil {
		if full := store.ExplainTooMany(err, runner.PodConnections, pool); full != err {
			return full
		}
		if errors.Is(err, ErrReadOnly) {
			return err
		}
		return fmt.Errorf("the database does not respond; check that it runs and that DATABASE_URL is correct: %w", err)
	}
	if number/10000 < oldestPostgres {
		return fmt.Errorf("%w: PostgreSQL %d is too old: want %d or newer", ErrDatabaseURL, number/10000, oldestPostgres)
	}
	return nil
}
