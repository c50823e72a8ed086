package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/routine"
)

// renewal replaces connections in a pool that must never be without one. It opens a new connection before it closes the old one. A pgxpool
// would close the expired connection first. If the server was full or could not be reached at that moment, the pod would then lose its
// lease.
type renewal struct {
	life time.Duration
	pool *pgxpool.Pool

	mu      sync.Mutex
	opening bool
	cutoff  time.Time // connections opened before this time are closed
	retry   time.Time // earliest time of the next attempt
}

// openedAt is the key under which a connection stores its opening time.
const openedAt = "trapeze opened"

// Steady returns a clone of s for heartbeats. Like a clone from [Store.Beside], it has a separate pool. That pool is not reset together
// with the others, and its connections are replaced as [renewal] describes.
func (s *Store) Steady(ctx context.Context, connections int) (*Store, error) {
	config := s.pool.Config()
	config.MaxConns = int4(connections)
	r := &renewal{life: config.MaxConnLifetime}
	config.MaxConnLifetime = 0
	config.BeforeConnect = s.connections.before
	after, prepare := config.AfterConnect, config.PrepareConn
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[openedAt] = time.Now()
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if !r.keep(conn) {
			return false, nil
		}
		if prepare != nil {
			return prepare(ctx, conn)
		}
		return true, nil
	}
	clone, err := s.clone(ctx, config, true)
	if err != nil {
		return nil, fmt.Errorf("open the pool of the heartbeats: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool = clone.pool
	return clone, nil
}

// lateFor limits the time for which a statement on a steady pool may continue after its deadline. After that, its connection is considered
// dead and is closed.
const lateFor = 30 * time.Second

// runDetached runs do. On a steady pool, it returns as soon as ctx ends, while do continues. If ctx were passed to pgx, pgx would close the
// connection when ctx ends, and a full server would not accept a new one.
func runDetached[T any](ctx context.Context, db *Database, do func(context.Context) (T, error)) (T, error) {
	if !db.steady {
		return do(ctx)
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	longer, cancel := routine.Linger(ctx, lateFor)
	stop := context.AfterFunc(db.closing, cancel)
	go func() {
		defer cancel()
		defer stop()
		value, err := do(longer)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// keep reports whether to keep a connection that is about to be used. Once the connection has reached the end of its lifetime, keep starts
// to open a replacement.
func (r *renewal) keep(conn *pgx.Conn) bool {
	opened, _ := conn.PgConn().CustomData()[openedAt].(time.Time)
	r.mu.Lock()
	defer r.mu.Unlock()
	if opened.Before(r.cutoff) {
		return false
	}
	if now := time.Now(); now.Sub(opened) > r.life && !r.opening && now.After(r.retry) {
		r.opening, r.retry = true, now.Add(r.life/20)
		go r.open() // the pool opens a new connection, because conn is in use and no other exists
	}
	return true
}

func (r *renewal) open() {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	conn, err := r.pool.Acquire(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opening = false
	if err != nil {
		return // the old connection stays in use
	}
	defer conn.Release()
	if opened, _ := conn.Conn().PgConn().CustomData()[openedAt].(time.Time); time.Since(opened) <= r.life {
		r.cutoff = opened
	}
}
