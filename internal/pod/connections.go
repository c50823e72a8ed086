package pod

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
)

// In addition to the host's pool, which handlers' transactions (InTx, Tx, Write) use, a pod opens the following connections. The columns
// are the maximum number, and the number that stays open while the pod is idle:
//
//	           most  idle
//	heartbeat     1     1  opened first and never given up
//	listener      1     1  LISTEN, and the leader lock of the maintenance
//	shared        4     1  everything else; polling keeps one
//
// Claims and completions always leave at least one of the shared connections to other statements, which in turn leave them at least two:
//
//	hot           3  a claim beside the flushers
//	commands      2  submissions, commands and reads, and these:
//	  feed        1  the feed and remote workers together
//	  slow        1  lists and the maintenance together
//
// A running export uses another connection. When the heartbeat's connection is replaced, its successor is opened before it is closed.
const (
	heartbeatConnections = 1
	listenerConnections  = 1
	sharedConnections    = 4

	// Connections is the number of connections that a pod needs. Exports and replacements briefly add to it.
	Connections = heartbeatConnections + listenerConnections + sharedConnections

	// hotTurns and commandsTurns limit how many shared connections each group uses concurrently.
	hotTurns      = sharedConnections - 1
	commandsTurns = sharedConnections - engine.Flushers

	// heartbeatSpare allows for replacing the heartbeat's connection, and for a dead connection that goes unnoticed for up to 45 s.
	heartbeatSpare = 2
)

// stores holds a pod's stores. Each runs its statements on one of the pod's pools.
type stores struct {
	heartbeat, hot, commands, feed, slow *store.Store
}

// newStores returns a pod's stores, without connecting to the database.
func newStores(ctx context.Context, pool *pgxpool.Pool, o Options) (s stores, err error) {
	shared, err := store.New(ctx, pool, store.Options{Schema: o.Schema, BehindPooler: o.BehindPooler, TraceQueries: o.TraceQueries,
		Connections: sharedConnections, UsedEvery: max(o.PollInterval, o.HeartbeatInterval), PodConnections: Connections})
	if err != nil {
		return s, err
	}
	if s.heartbeat, err = shared.Steady(ctx, heartbeatConnections+heartbeatSpare); err != nil {
		return s, err
	}
	s.hot, s.commands = shared.Modest(hotTurns), shared.Modest(commandsTurns)
	s.feed, s.slow = s.commands.Modest(1), s.commands.Modest(1)
	return s, nil
}

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
