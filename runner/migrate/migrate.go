// Package migrate creates and migrates the tables of package runner. It is a separate package so that programs that do not use it do not
// link the migration library. Those programs run `trapeze migrate up`, or apply the SQL from `trapeze migrate print` with another tool.
package migrate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/runner"
)

// Up migrates the tables in the schema of o to this program's version, and creates the lanes in o that do not exist. Pass the same options
// to [runner.New]. Up needs the privileges to create these objects only if any of them are missing. It opens separate connections to the
// pool's address or to Options.DirectURL. Any number of pods can call Up concurrently. A running pod also creates missing lanes.
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
