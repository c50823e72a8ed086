// Package migrate makes the tables of package runner. It is a separate package: programs that leave this to `trapeze migrate up`, or to
// another tool with the SQL from `trapeze migrate print`, do not link the migration library.
package migrate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/runner"
)

// Up brings the tables to the version of this program, in the schema of the options, and makes the lanes of the options that the database
// does not know. Give it the options that [runner.New] gets. It needs rights to create, but none where nothing is missing. It uses
// separate connections, with the pool's address, or past a pooler by Options.DirectURL. Any number of pods may call it at once. A pod that
// runs makes lanes too.
func Up(ctx context.Context, pool *pgxpool.Pool, o runner.Options) error {
	r, err := runner.New(pool, o)
	if err != nil {
		return err
	}
	defer r.Close()
	url := pool.Config().ConnString()
	if o.DirectURL != "" && o.DirectURL != "off" {
		url = o.DirectURL
	}
	parts := inside.Of(r)
	if err := migrate.Up(ctx, url, parts.Store.Schema()); err != nil {
		return err
	}
	if err := parts.Pod.MakeLanes(ctx); err != nil {
		return fmt.Errorf("make lanes: %w", err)
	}
	return nil
}
