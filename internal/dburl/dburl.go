// Package dburl parses the connection strings in the environment. All commands and all connections outside a pool use it, so that they
// accept the same strings.
package dburl

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config parses a connection string for a single connection. It checks pool parameters such as pool_max_conns and then removes them,
// because PostgreSQL rejects a session with unknown parameters.
func Config(url string) (*pgx.ConnConfig, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	UseUTF8(config.ConnConfig)
	return config.ConnConfig, nil
}

// UseUTF8 makes sessions send and receive UTF-8, which is the encoding of Go's strings. By default, they use the encoding of the database.
func UseUTF8(config *pgx.ConnConfig) { config.RuntimeParams["client_encoding"] = "UTF8" }

// Connect opens a single connection.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config)
}
