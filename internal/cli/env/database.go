package env

import (
	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// oldestPostgres is the first major version with all that the statements use.
const oldestPostgres = 14

// ErrNoDatabase is the error of a command without a DATABASE_URL.
var ErrNoDatabase = exit.Usage("DATABASE_URL is not set: export DATABASE_URL=postgres://user@host/database, " +
	"such as the one that trapeze serve prints when it brings its own PostgreSQL, or act through a server: --server URL")

// Connect opens a pool and makes sure that a server answers which is new enough, and accepts writes when they are wanted.
func (c *Settings) Connect(ctx context.Context, writes bool) (*pgxpool.Pool, error) {
	settings, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, exit.Usage("DATABASE_URL: %w", err)
	}
	if c.DirectURL != "" { // a transaction pooler sits in between: nothing may be left behind in a session
		settings.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if writes {
		dburl.RequireWrites(settings.ConnConfig, c.DirectURL != "")
	}
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, exit.Usage("DATABASE_URL: %w", err)
	}
	var number int
	if err := pool.QueryRow(ctx, `select current_setting('server_version_num')::int`).Scan(&number); err != nil {
		pool.Close()
		if full := store.ExplainTooMany(err, runner.PodConnections, pool); full != err {
			return nil, exit.Unavailable("%w", full)
		}
		if errors.Is(err, dburl.ErrReadOnly) {
			return nil, exit.Unavailable("%w", err)
		}
		return nil, exit.Unavailable("the database does not answer; check that it runs and that DATABASE_URL is right: %w", err)
	}
	if number/10000 < oldestPostgres {
		pool.Close()
		return nil, exit.Usage("the database is PostgreSQL %d: want %d or newer", number/10000, oldestPostgres)
	}
	return pool, nil
}

// Masked shows where a database is, without its password.
func Masked(databaseURL string) string {
	c, err := dburl.Config(databaseURL)
	if err != nil {
		return "unknown"
	}
	hosts := []string{hostPort(c.Host, c.Port)}
	for _, other := range c.Fallbacks { // the same host again when TLS is optional
		if host := hostPort(other.Host, other.Port); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	who := c.User
	if c.Password != "" {
		who += ":xxxxx"
	}
	if strings.HasPrefix(c.Host, "/") { // a directory of unix sockets
		return fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", who, c.Database, c.Host, c.Port)
	}
	url := fmt.Sprintf("postgres://%s@%s/%s", who, strings.Join(hosts, ","), c.Database)
	if c.TLSConfig == nil && len(c.Fallbacks) == 0 {
		url += "?sslmode=disable"
	}
	return url
}

func hostPort(host string, port uint16) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%d", host, port)
}

// Logger makes the logger that TRAPEZE_LOG and TRAPEZE_LOG_FORMAT ask for, on stderr.
func (c *Settings) Logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Log)) // one of four, by config.validate
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
