package runner

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/migrate"
)

// Migrate brings the tables in the given schema (empty: trapeze) to the version of this program, on a connection of its
// own with the pool's address. Any number of pods may call it at once. People who use a migration tool of their own take
// the SQL from `trapeze migrate print` instead.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	if schema == "" {
		schema = "trapeze"
	}
	return migrate.Up(ctx, pool.Config().ConnString(), schema)
}
