package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// holdGroupSQL locks claims for a transaction that ends them all, and skips those with a cancel request. The ids must be sorted, because
// two groups that lock their claims in different orders could deadlock. The lateral query with its limit keeps the planner from choosing to
// read the whole table on the host's connection. Plan: Index Scan on live_pkey, one row for each id.
//
// groupSettingsSQL limits how long the transaction waits for locks and how long it may be idle.
var (
	holdGroupSQL = newStatement(`
select l.id from unnest(@id::bigint[], @fence::bigint[]) as c(id, fence)
cross join lateral (select id from trapeze.live
	where id = c.id and fence = c.fence and pod = @pod::uuid and not cancel_requested limit 1 for update) l`)
	groupSettingsSQL = newStatement(`
select set_config('lock_timeout', @locks::bigint::text, true), set_config('idle_in_transaction_session_timeout', @idle::bigint::text, true)`)
)

// Group is a set of one pod's claims that end in a single transaction, together with the statements that their handlers queued.
type Group struct {
	PodID    string
	Ends     []Ending                         // sorted by id
	Queue    func(id int64, batch *pgx.Batch) // queues a job's statements
	LockWait time.Duration                    // timeout for each lock
	Idle     time.Duration                    // timeout after which the server ends the idle transaction
	Sending  func() error                     // called once the claims are locked
}

// FinishGroup ends a group in one transaction on one of the pool's connections, and commits it, in two round trips. It skips claims that
// were lost or have a cancel request. Nothing is written for these claims, and they are missing from the map. If it returns an error,
// nothing was written, unless [Unknown] is true for the error.
func FinishGroup(ctx context.Context, s *Store, pool *pgxpool.Pool, g Group) (map[int64]Ended, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	h := &Holding{conn: conn}
	defer h.End(ctx)
	held, err := h.beginGroup(ctx, s, g)
	if err != nil {
		CloseStale(conn.Conn(), err, true)
		return nil, fmt.Errorf("lock a group of jobs: %w", err)
	}
	ends := slices.DeleteFunc(slices.Clone(g.Ends), func(e Ending) bool { return !held[e.ID] })
	if len(ends) == 0 {
		return nil, nil
	}
	if err := g.Sending(); err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	for _, e := range ends {
		g.Queue(e.ID, batch)
	}
	ended, err := queueFinish(batch, s, g.PodID, ends)
	if err != nil {
		return nil, err
	}
	batch.Queue("commit")
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("finish a group of jobs: %w", err)
	}
	return ended, nil
}

func (h *Holding) beginGroup(ctx context.Context, s *Store, g Group) (held map[int64]bool, err error) {
	claims, err := holdGroupSQL.bind(append(endings.arrays(holdGroupSQL, pointers(g.Ends)), args{{"pod", g.PodID}}...))
	if err != nil {
		return nil, err
	}
	settings, err := groupSettingsSQL.bind(args{{"locks", g.LockWait.Milliseconds()}, {"idle", g.Idle.Milliseconds()}})
	if err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(groupSettingsSQL.text, settings...)
	batch.Queue(s.In(holdGroupSQL.text), claims...).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		held = set(list)
		return err
	})
	sent := h.conn.SendBatch(ctx, batch)
	h.Tx = sent.Tx()
	return held, sent.Close()
}
