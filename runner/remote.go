package runner

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/engine"
)

// ErrNoDatabase is the error of every operation that needs the database, in a program without one: a remote worker.
var ErrNoDatabase = engine.ErrNoDatabase

// InDatabase declares that handlers of the kind write with [Job.Tx] or [Outcome.InTx], so that no remote worker can run it.
// Registering such a kind on a remote worker is a wiring mistake, and pods reject a worker that offers it.
func InDatabase() HandleOption { return handleOption(func(k *registered) { k.InDatabase = true }) }

// RemoteOptions configure [NewRemote].
type RemoteOptions struct {
	// Name is the display name. Default: the host name.
	Name string
	// Logger receives the worker's log lines. Default [slog.Default].
	Logger *slog.Logger
	// Middleware is called around each handler, as Options.Middleware on a pod. Default: none.
	Middleware []Middleware
}

// NewRemote returns a runner that opens no connection to a database. Register handlers as with any other runner, and let package
// remote/worker run it. [Runner.Run], submissions and commands return [ErrNoDatabase].
func NewRemote(o RemoteOptions) (*Runner, error) {
	config, err := pgxpool.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, err
	}
	// Every connection calls this hook, including those outside the pool.
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return ErrNoDatabase }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	r, err := New(pool, Options{Name: o.Name, Logger: o.Logger, Middleware: o.Middleware, DirectURL: "off"})
	if err != nil {
		pool.Close()
		return nil, err
	}
	r.remote = pool
	return r, nil
}
