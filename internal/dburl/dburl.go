// Package dburl parses the connection strings of the environment. Every command, and every connection outside a pool, uses
// it, so that all of them accept the same strings.
package dburl

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config parses a connection string for a single connection. It checks and removes parameters of a pool, such as
// pool_max_conns, because PostgreSQL rejects a session that names one.
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
