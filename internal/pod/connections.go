package pod

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
)

// The maximum number of connections that a pod opens in addition to the host's pool, and the number that stay open while it is idle.
// Transactions of handlers (InTx, Tx, Write) use the host's pool.
//
//	           most  idle
//	heartbeat     1     1  opened first and never given up
//	listener      1     1  LISTEN, and the leader lock of the maintenance
//	shared        4     1  everything else; polling keeps one
//
// Claims and completions always leave at least one of the shared connections to other statements, and the other statements leave at least
// two to claims and completions:
//
//	hot           3  a claim beside the flushers
//	commands      2  submissions, commands and reads, and these:
//	  feed        1  the feed and remote workers together
//	  slow        1  lists and the maintenance together
//
// In addition, a running export uses one connection. When the heartbeat's connection is replaced, the new one is opened before the old one
// is closed.
const (
	heartbeatConnections = 1
	listenerConnections  = 1
	sharedConnections    = 4

	// Connections is the number of connections that a pod needs. An export and a replacement add to it for a short time.
	Connections = heartbeatConnections + listenerConnections + sharedConnections

	// hotTurns and commandsTurns limit the shared connections that each group uses at the same time.
	hotTurns      = sharedConnections - 1
	commandsTurns = sharedConnections - engine.Flushers

	// heartbeatSpare allows for the replacement of the heartbeat's connection, and for a dead connection that may take 45 s to be detected.
	heartbeatSpare = 2
)

// stores holds a pod's stores. Each store runs its statements on one of the pod's pools.
type stores struct {
	heartbeat, hot, commands, feed, slow *store.Store
}

// newStores returns a pod's stores, without connecting to the database.
func newStores(ctx context.Context, pool *pgxpool.Pool, o Options) (s stores, err error) {
	shared, err := store.New(ctx, pool, store.Options{Schema: o.Schema, BehindPooler: o.BehindPooler, TraceQueries: o.TraceQueries,
		Connections: sharedConnections, UsedEvery: max(o.PollEvery, o.HeartbeatEvery), PodConnections: Connections})
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
