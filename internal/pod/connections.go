package pod

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

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
