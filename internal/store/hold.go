package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
)

// Holding is a transaction that locks a claim: transactions that want to take the job away wait or skip it. The server ends the transaction
// when it has been idle for a lease, so that a frozen process cannot hold it for ever. The handler may write in it; [Holding.End] closes
// it. Not safe for concurrent use.
type Holding struct {
	pgx.Tx
	number int
	conn   *pgxpool.Conn
}

// holdSQL locks a claim and counts the transactions that did so. After a lost reply to COMMIT the count shows whether it was committed.
// Plan: Index Scan on live_pkey, one row; HOT.
//
// holdToEndSQL is holdSQL for a transaction that ends the claim, for which the missing row is sufficient evidence. Plan: Index Scan on
// live_pkey, one row.
var (
	holdSQL = newStatement(`
update trapeze.live set writes = writes + 1 where id = @id and fence = @fence and pod = @boot
returning cancel_requested, writes, set_config('idle_in_transaction_session_timeout', @idle::bigint::text, true)`)
	holdToEndSQL = newStatement(`
with held as (select cancel_requested from trapeze.live where id = @id and fence = @fence and pod = @boot for update)
select cancel_requested, `, strconv.Itoa(Uncounted), `, set_config('idle_in_transaction_session_timeout', @idle::bigint::text, true) from held`)
)

// Uncounted is the number of a transaction that ends its claim. No claim that is still held has had that many.
const Uncounted = math.MaxInt32

// Hold begins a transaction on a connection of the pool and locks a claim in it, in one round trip. With ends, the transaction will end the
// claim. It returns [job.ErrLeaseLost], [job.ErrGone], or [job.ErrCancelled] if a cancel was committed before. The caller must call
// [Holding.End].
func Hold(ctx context.Context, s *Store, pool *pgxpool.Pool, l job.Lease, idle time.Duration, ends bool) (*Holding, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	h := &Holding{conn: conn}
	if err := h.begin(ctx, s, l, idle, ends); err != nil {
		CloseStale(conn.Conn(), err, true)
		h.End(ctx)
		return nil, fmt.Errorf("hold job %d: %w", l.JobID, err)
	}
	return h, nil
}

func (h *Holding) begin(ctx context.Context, s *Store, l job.Lease, idle time.Duration, ends bool) error {
	st := holdSQL
	if ends {
		st = holdToEndSQL
	}
	values, err := st.bind(args{{"id", l.JobID}, {"fence", l.Fence}, {"boot", l.Pod}, {"idle", idle.Milliseconds()}})
	if err != nil {
		return err
	}
	var (
		held, cancelled bool
		discard         string
	)
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(s.In(st.text), values...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&cancelled, &h.number, &discard)
		held = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return err
	})
	sent := h.conn.SendBatch(ctx, batch)
	h.Tx = sent.Tx()
	switch err := sent.Close(); {
	case err != nil:
		return err
	case !held:
		return lostIn(ctx, s, h.Tx, l)
	case cancelled:
		return job.ErrCancelled
	}
	return nil
}

// Number returns the transaction's number among those that locked the claim, for [Settled].
func (h *Holding) Number() int { return h.number }

// Finish is [Store.Finish] of the held claim, and commits, in one round trip.
func (h *Holding) Finish(ctx context.Context, s *Store, boot string, e Ending) (Ended, error) {
	if h.conn.Conn().PgConn().TxStatus() == 'I' {
		return Ended{}, fmt.Errorf("finish job %d: the handler's writes have ended the transaction: %w", e.ID, pgx.ErrTxClosed)
	}
	batch := &pgx.Batch{}
	ended, err := queueFinish(batch, s, boot, []Ending{e})
	if err != nil {
		return Ended{}, err
	}
	batch.Queue("commit")
	if err := h.conn.SendBatch(ctx, batch).Close(); err != nil {
		return Ended{}, fmt.Errorf("finish job %d: %w", e.ID, err)
	}
	end, ok := ended[e.ID]
	if !ok {
		return Ended{}, fmt.Errorf("finish job %d: %w", e.ID, job.ErrLeaseLost)
	}
	return end, nil
}

// closed is a transaction that has ended. It replaces a handler's transaction, which must not write in the next one on its connection.
var closed = func() pgx.Tx {
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(batch, pgx.ErrTxClosed).Tx()
}()

// End rolls the transaction back unless it was committed, and releases the connection. It waits at most five seconds, even if ctx has
// ended.
func (h *Holding) End(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if h.conn.Conn().PgConn().TxStatus() != 'I' && h.Tx != nil {
		_ = h.Tx.Rollback(ctx) // a broken connection has rolled back already
	}
	h.Tx = closed
	h.conn.Release()
}

// settledSQL reads how many transactions have locked a claim. It locks the row, so that it waits for the transaction with the unknown
// outcome if that is still running. A transaction id would not be sufficient: after a crash PostgreSQL reuses the ids of transactions whose
// log was lost. Plan: Index Scan on live_pkey, one row.
var settledSQL = newStatement(`select writes from trapeze.live where id = @id and fence = @fence and pod = @boot for no key update`)

// Settled returns how many transactions that locked a claim were committed, once none is in flight. held is false if the claim is no longer
// the job's latest, or has ended.
func Settled(ctx context.Context, s *Store, l job.Lease) (writes int, held bool, err error) {
	found, err := run(ctx, s, pgx.RowTo[int], settledSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"boot", l.Pod}})
	if err != nil {
		return 0, false, fmt.Errorf("settle a commit of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return 0, false, nil
	}
	return found[0], true, nil
}
