package runnertest

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire manages one pod's network connections and can cut them.
type wire struct {
	dial pgconn.DialFunc

	mu    sync.Mutex
	conns []net.Conn
	cut   bool
	pids  []uint32 // process ids of the server sessions
}

var errCut = errors.New("runnertest: the connections of a dead pod are cut")

// open implements [pgconn.DialFunc].
func (w *wire) open(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: errCut}
	}
	w.conns = append(w.conns, conn)
	return conn, nil
}

// opened records a connection's server process.
func (w *wire) opened(pid uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids = append(w.pids, pid)
}

// sever closes all connections and rejects new ones.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, c := range w.conns {
		_ = c.Close() // an error means that it is already closed
	}
	w.conns = nil
}

func (w *wire) processes() []uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.pids)
}
