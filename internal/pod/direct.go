package pod

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/dburl"
)

// directWithin is the timeout for connecting to each host.
const directWithin = 5 * time.Second

// direct connects to the primary without a pooler. It calls the host pool's connection hooks, which may set a role, or a short-lived token
// as the password, unless DirectURL contains a password.
func (p *Pod) direct(ctx context.Context) (*pgx.Conn, error) {
	pool := p.Pool.Config()
	config, own := pool.ConnConfig, false
	if p.opts.DirectURL != "" {
		var err error
		if config, err = dburl.Config(p.opts.DirectURL); err != nil {
			return nil, err
		}
		own = config.Password != ""
	}
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > directWithin {
		config.ConnectTimeout = directWithin
	}
	dburl.RequireWrites(config, false)
	config.RuntimeParams["application_name"] = "trapeze-listen"
	config.RuntimeParams["idle_session_timeout"] = "0" // the session waits for notifications
	if pool.BeforeConnect != nil && !own {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	if !p.opts.TraceQueries {
		config.Tracer = nil
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil && pool.AfterConnect != nil && !own {
		if err = pool.AfterConnect(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, err
		}
	}
	return conn, err
}
