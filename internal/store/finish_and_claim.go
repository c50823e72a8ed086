package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimLockWait is the lock timeout of [Store.FinishAndClaim]. The claim skips locked rows, so it waits only for table locks. Finishing
// jobs may wait for the row of a fan-out.
const claimLockWait = 20 * time.Millisecond

// FinishAndClaim is like [Store.Finish] and claims up to w.Ahead jobs from one lane in the same commit. The claimed jobs start immediately.
// The claim stops before the first job that has a subject, a unique key or an earlier claim, because a claim of that job might wait for
// another transaction.
//
// FinishAndClaim does not retry. After an error for which [Unknown] is false, nothing was written. The claim may have caused the error, so
// call [Store.Finish] for the same jobs.
func (s *Store) FinishAndClaim(ctx context.Context, podID string, list []Ending, w Want, kinds []string, isolated bool) (map[int64]Ended, Claims, error) {
	end, by := finishOneOf(podID, list)
	if end == nil {
		end, by = finishManyOf(podID, list)
	}
	w.N = 0
	claim, wanted := claimOf(s, podID, []Want{w}, kinds, kinds, isolated, false)
	var ended []endedRow
	var claimed []*Claimed
	var state claimState
	err := inOneCommit(ctx, s, []string{end.text, claim.text}, func(batch *pgx.Batch) error {
		batch.Queue(shortWaitSQL, claimLockWait.Milliseconds())
		if err := queue(batch, s, scanEnded, end, by, &ended); err != nil {
			return err
		}
		return queue(batch, s, state.scan, claim, wanted, &claimed)
	})
	if err != nil {
		return nil, Claims{}, fmt.Errorf("finish and claim: %w", err)
	}
	found, err := state.claims(claimed)
	return endedByID(ended), found, err
}

// inOneCommit calls add to fill a batch, and runs it with pinned plans in one implicit transaction on the store's own pool. It first
// prepares the statements listed in texts.
func inOneCommit(ctx context.Context, s *Store, texts []string, add func(*pgx.Batch) error) error {
	batch := &pgx.Batch{}
	if s.pooled {
		batch.Queue(pooledSQL, lockWait(s.wait).Milliseconds())
		batch.Queue(pinSQL)
	}
	if err := add(batch); err != nil {
		return err
	}
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	end, err := s.Turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	return s.attempt(ctx, func() error {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return hadNoEffect(err)
		}
		defer conn.Release()
		if !s.pooled {
			if err := prepareOnce(ctx, s, conn.Conn(), texts); err != nil {
				return hadNoEffect(err)
			}
		}
		return conn.SendBatch(ctx, batch).Close()
	})
}

// prepareOnce prepares each statement once per connection. Preparing a statement also takes table locks, so prepareOnce sets the lock
// timeout to [claimLockWait].
func prepareOnce(ctx context.Context, s *Store, conn *pgx.Conn, texts []string) error {
	known := conn.PgConn().CustomData()
	for _, sql := range texts {
		if sql = s.In(sql); known[sql] == true {
			continue
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, shortWaitSQL, claimLockWait.Milliseconds()); err != nil {
				return err
			}
			_, err := tx.Prepare(ctx, sql, sql)
			return err
		})
		if err != nil {
			return err
		}
		known[sql] = true
	}
	return nil
}
