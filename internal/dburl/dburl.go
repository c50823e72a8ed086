// Package dburl parses the connection strings in the environment. Every command uses it, and so does every connection outside a pool, so
// that all of them accept the same strings.
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
	return config.ConnConfig, nil
}

// Connect opens a single connection.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config)
}
