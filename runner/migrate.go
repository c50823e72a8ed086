package runner

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/migrate"
)

// Migrate brings the tables to the version of this program, in the schema of the options, and makes the lanes of the options that the
// database does not know. Give it the options that [New] gets; it needs rights to create. It uses connections of its own, with the pool's
// address, or past a pooler by Options.DirectURL. Any number of pods may call it at once. People who use a migration tool of their own
// take the SQL from `trapeze migrate print` instead; a pod that runs makes lanes too.
func Migrate(ctx context.Context, pool *pgxpool.Pool, o Options) error {
	r, err := New(pool, o)
	if err != nil {
		return err
	}
	defer r.Close()
	url := pool.Config().ConnString()
	if o.DirectURL != "" && o.DirectURL != "off" {
		url = o.DirectURL
	}
	if err := migrate.Up(ctx, url, r.opts.Schema); err != nil {
		return err
	}
	if err := r.pod.MakeLanes(ctx); err != nil {
		return fmt.Errorf("make lanes: %w", err)
	}
	return nil
}
