package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
)

// Holding is a transaction that locks a claim. Transactions that would take the job away either wait for the Holding to end or skip the
// job. The server ends the transaction when it has been idle for the length of a lease, so that a frozen process cannot hold it
// indefinitely. The handler may write in the transaction, and [Holding.End] closes it. A Holding is not safe for concurrent use.
type Holding struct {
	pgx.Tx
	number int
	id     string // the transaction's id in PostgreSQL
	conn   *pgxpool.Conn
}

// holdSQL locks a claim and increments the number of transactions that have locked it. After a lost reply to COMMIT, that number shows
// whether the transaction was committed. Plan: Index Scan on live_pkey, one row; a HOT update.
//
// holdToEndSQL is like holdSQL, for a transaction that ends the claim. In that case, the absence of the row is enough to prove the commit.
// Plan: Index Scan on live_pkey, one row.
var (
	holdSQL = newStatement(`
update trapeze.live set writes = writes + 1 where id = @id and fence = @fence and pod = @pod
returning cancel_requested, writes, pg_current_xact_id()::text, set_config('idle_in_transaction_session_timeout', @idle::bigint::text, true)`)
	holdToEndSQL = newStatement(`
with held as (select cancel_requested from trapeze.live where id = @id and fence = @fence and pod = @pod for update)
select cancel_requested, `, strconv.Itoa(Uncounted), `, pg_current_xact_id()::text, set_config('idle_in_transaction_session_timeout', @idle::bigint::text, true) from held`)
)

// Uncounted stands in for the number of a transaction that ends its claim, because such transactions are not counted. The transaction count
// of an active claim never reaches this number.
const Uncounted = math.MaxInt32

// Hold begins a transaction on one of the pool's connections and locks a claim in it, in one round trip. The ends argument states whether
// the transaction will end the claim. Hold returns [job.ErrLeaseLost] if the claim was lost, [job.ErrGone] if the job was deleted, and
// [job.ErrCancelled] if a cancel request was committed first. The caller must call [Holding.End].
func Hold(ctx context.Context, s *Store, pool *pgxpool.Pool, l job.Lease, idle time.Duration, ends bool) (*Holding, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		if use := pool.Stat(); ctx.Err() != nil && use.AcquiredConns() == use.MaxConns() {
			err = fmt.Errorf("all connections of the pool (%d) stayed in use: look for a transaction without an end, or raise pool_max_conns: %w", use.MaxConns(), err)
		}
		return nil, err
	}
	h := &Holding{conn: conn}
	if err := h.begin(ctx, s, l, idle, ends); err != nil {
		CloseStale(conn.Conn(), err, true)
		h.End(ctx)
		return nil, fmt.Errorf("lock job %d: %w", l.JobID, err)
	}
	return h, nil
}

func (h *Holding) begin(ctx context.Context, s *Store, l job.Lease, idle time.Duration, ends bool) error {
	st := holdSQL
	if ends {
		st = holdToEndSQL
	}
	values, err := st.bind(args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"idle", idle.Milliseconds()}})
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
		err := row.Scan(&cancelled, &h.number, &h.id, &discard)
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

// ErrEnded is returned for a handler that has committed or rolled back the transaction that locks its claim.
var ErrEnded = fmt.Errorf("the handler's writes have ended the transaction, which only Trapeze may commit: remove their commit or rollback: %w", pgx.ErrTxClosed)

// sameTxSQL divides by zero if the current transaction is not the one that locked the claim. The handler then executed COMMIT or ROLLBACK
// and began another transaction. Plan: no table.
const sameTxSQL = `select 1 / (pg_current_xact_id_if_assigned() is not distinct from $1::text::xid8)::int`

// last returns a batch for the transaction's last statements. It fails with [ErrEnded] if the handler has ended the transaction.
func (h *Holding) last() *pgx.Batch {
	batch := &pgx.Batch{}
	batch.Queue(sameTxSQL, h.id).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "22012" {
			return ErrEnded
		}
		return err
	}
	return batch
}

// Commit commits the transaction, in one round trip.
func (h *Holding) Commit(ctx context.Context) error {
	batch := h.last()
	batch.Queue("commit")
	return h.conn.SendBatch(ctx, batch).Close()
}

// Check returns an error if the handler's writes left rows open, closed the connection, or ended or aborted the transaction.
func (h *Holding) Check() error {
	switch conn := h.conn.Conn().PgConn(); {
	case conn.IsClosed():
		return errors.New("the handler's writes returned no error, but closed its connection")
	case conn.IsBusy():
		return errors.New("the handler's writes left rows open: close them")
	case conn.TxStatus() == 'I':
		return ErrEnded
	case conn.TxStatus() == 'E':
		return errors.New("the handler's writes ignored the error of a statement, which aborted the transaction: return the error, or use a savepoint (tx.Begin)")
	}
	return nil
}

// Broken reports whether the transaction failed with err because its connection was lost, or because the server reported an error after
// which the whole transaction should be repeated. The error of another server is not a reason: it leaves this transaction intact.
func (h *Holding) Broken(err error) bool {
	if !Transient(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	pg, ofServer := errors.AsType[*pgconn.PgError](err)
	if conn := h.conn.Conn().PgConn(); !conn.IsClosed() {
		return ofServer && conn.TxStatus() == 'E' && pg.SeverityUnlocalized == "ERROR" && pg.Code != readOnly
	}
	return !ofServer || pg.Code != txTimeout
}

// Number returns how many transactions have locked the claim, including this one. Compare it with the result of [Settled].
func (h *Holding) Number() int { return h.number }

// Finish finishes the locked claim, as [Store.Finish] does, and commits, in one round trip.
func (h *Holding) Finish(ctx context.Context, s *Store, podID string, e Ending) (Ended, error) {
	batch := h.last()
	ended, err := queueFinish(batch, s, podID, []Ending{e})
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

// closed is a transaction that has already ended. It replaces the transaction that a handler used, so that the handler cannot write in the
// next transaction on the same connection.
var closed = func() pgx.Tx {
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(batch, pgx.ErrTxClosed).Tx()
}()

// End rolls the transaction back unless it was committed, and releases the connection. It waits at most five seconds, even if ctx has
// already ended.
func (h *Holding) End(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if h.conn.Conn().PgConn().TxStatus() != 'I' && h.Tx != nil {
		_ = h.Tx.Rollback(ctx) // a broken connection is already rolled back
	}
	h.Tx = closed
	h.conn.Release()
}

// settledSQL reads how many transactions have locked a claim. It locks the row, so it waits for the transaction with the unknown outcome if
// that transaction is still running. A transaction id would not be sufficient, because PostgreSQL reuses the ids of transactions whose WAL
// was lost in a crash. Plan: Index Scan on live_pkey, one row.
var settledSQL = newStatement(`select writes from trapeze.live where id = @id and fence = @fence and pod = @pod for no key update`)

// Settled returns the number of committed transactions that locked a claim. It waits for any that are in flight. held is false if the claim
// has ended or is no longer the job's latest.
func Settled(ctx context.Context, s *Store, l job.Lease) (writes int, held bool, err error) {
	found, err := run(ctx, s, pgx.RowTo[int], settledSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}})
	if err != nil {
		return 0, false, fmt.Errorf("read back a commit of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return 0, false, nil
	}
	return found[0], true, nil
}
