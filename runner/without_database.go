package runner

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RequiresDatabase declares that the kind's handlers write with [Job.Tx], [Job.Write], [Outcome.InTx] or [Outcome.Write], so no remote worker can
// run the kind. Registering it on a remote worker panics, and pods reject a worker that offers it.
func RequiresDatabase() HandleOption {
	return handleOption(func(k *registered) { k.RequiresDatabase = true })
}

// RemoteOptions configures a remote worker's runner; see [NewRemote].
type RemoteOptions struct {
	// Name is the display name. Default: the host name.
	Name string
	// Logger receives the worker's log records. Default [slog.Default].
	Logger *slog.Logger
	// Middleware wraps each handler, like Options.Middleware on a pod. Default: none.
	Middleware []Middleware
}

// NewRemote returns a runner that never opens a database connection. Register handlers as with any other runner, and pass it to package
// remote/worker to run them. [Runner.Run], submissions and commands return [ErrNoDatabase].
func NewRemote(o RemoteOptions) (*Runner, error) {
	config, err := pgxpool.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, err
	}
	// This hook runs for every connection, even one opened outside the pool.
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return ErrNoDatabase }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	r, err := New(pool, Options{PodName: o.Name, Logger: o.Logger, Middleware: o.Middleware, DirectURL: "off"})
	if err != nil {
		pool.Close()
		return nil, err
	}
	r.remote = pool
	return r, nil
}
