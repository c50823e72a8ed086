package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// blockSize is the job_ids sequence's increment. nextval reserves a block of this size and returns its first id.
const blockSize = 1000

// idBlocksSQL reserves blocks of ids. It returns the history in which they were reserved, and whether any id in the blocks is already in
// use, which can happen after a restore that left the sequence behind. It reserves nothing while a new history has yet to be recorded,
// unless @settled is true. It reads the history first, so that a block returned with a new history must have been reserved after the
// sequence was moved. Plan: nextval; per block one probe of jobs_pkey, which stops at the first row.
//
// spareIDSQL is like idBlocksSQL, for a single id. Plan: as idBlocksSQL.
var (
	idBlocksSQL = newStatement(reserved(`nextval('trapeze.job_ids')`, "1000", `generate_series(1, @blocks::int)`))
	spareIDSQL  = newStatement(reserved(`trapeze.spare_job_id()`, "1", `generate_series(1, 1)`))
)

// reserved returns a statement that reserves spans of ids of the given size, one span for each row of from. first is an expression that
// reserves a span and returns its first id.
func reserved(first, size, from string) string {
	return `
with h as materialized (select coalesce(trapeze.history()::text, '') as history),
b as materialized (select h.history, ` + first + ` as first from h cross join ` + from + ` where h.history <> '' or @settled)
select b.first, b.history,
	coalesce((select true from trapeze.jobs j where j.id >= b.first and j.id < b.first + ` + size + ` and j.id % 1000 <> 0 order by j.id limit 1), false)
from b`
}

// advanceIDsSQL moves the sequence far beyond an id that is in use. Plan: a backward scan of jobs_pkey, one row.
const advanceIDsSQL = `select trapeze.advance_job_ids($1)`

// ids assigns job ids from blocks of the sequence, so that a job's id is known before its row is committed. Its mutex is never held while a
// statement runs, because a caller that holds a connection must not wait for one that needs a connection.
type ids struct {
	mu      sync.Mutex
	history string // the history in which the blocks were reserved
	spans   []span
	begun   bool // whether ids have been reserved before

	reserving sync.Mutex // makes callers take turns to reserve blocks on the store's own pool
}

type span struct{ next, end int64 }

// take returns n ids, or nil and the number of missing ids. Blocks that were reserved in an earlier history are dropped.
func (i *ids) take(n int, history string) (list []int64, missing int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if history != i.history {
		i.spans, i.history = nil, history
	}
	list, rest := takeFrom(i.spans, n)
	if len(list) < n {
		return nil, n - len(list)
	}
	i.spans = rest
	return list, 0
}

// put adds blocks that were reserved in the given history.
func (i *ids) put(blocks []span, history string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.begun = true; history != i.history {
		i.spans, i.history = nil, history
	}
	i.spans = append(i.spans, blocks...)
}

// first reports whether no ids have been reserved yet.
func (i *ids) first() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.begun
}

// takeFrom returns up to n ids from spans, and the remaining spans.
func takeFrom(spans []span, n int) (list []int64, rest []span) {
	list, rest = make([]int64, 0, n), slices.Clone(spans)
	for len(list) < n && len(rest) > 0 {
		head := &rest[0]
		if head.next%blockSize != 0 { // multiples of blockSize are reserved for trapeze.single_job_id
			list = append(list, head.next)
		}
		if head.next++; head.next == head.end {
			rest = rest[1:]
		}
	}
	return list, rest
}

// NewIDs returns n job ids that are unused and will never be reassigned. The first job of a process gets its id from a block that all
// processes share, so that a program that submits only one job does not use up a whole block.
func (s *Store) NewIDs(ctx context.Context, n int) ([]int64, error) {
	if list, missing := s.ids.take(n, s.cluster.History()); missing == 0 {
		return list, nil
	}
	s.ids.reserving.Lock()
	defer s.ids.reserving.Unlock()
	return s.newIDs(n, func(blocks int) ([]span, string, error) {
		return reserveBlocks(ctx, s, nil, blocks, n == 1 && s.ids.first())
	})
}

// NewIDsIn is like [Store.NewIDs], but reserves blocks in the caller's transaction, which must not wait for a second connection. The
// sequence does not follow a rollback, so the blocks stay reserved if the transaction fails. They are reserved in a savepoint that is rolled
// back, so that the transaction holds no lock on the row of the cluster's identity.
func (s *Store) NewIDsIn(ctx context.Context, tx pgx.Tx, n int) (list []int64, err error) {
	return s.newIDs(n, func(blocks int) (spans []span, history string, err error) {
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
			if spans, history, err = reserveBlocks(ctx, s, tx, blocks, false); err == nil {
				err = errUndo
			}
			return err
		})
		if errors.Is(err, errUndo) {
			err = nil
		}
		return spans, history, err
	})
}

// errUndo rolls a savepoint back after success.
var errUndo = errors.New("roll back the savepoint")

// newIDs takes n ids, and calls reserve until there are enough.
func (s *Store) newIDs(n int, reserve func(blocks int) ([]span, string, error)) ([]int64, error) {
	for {
		list, missing := s.ids.take(n, s.cluster.History())
		if missing == 0 {
			return list, nil
		}
		blocks, history, err := reserve(missing/(blockSize-1) + 1)
		if err != nil {
			return nil, fmt.Errorf("reserve job ids: %w", hadNoEffect(err)) // reserved ids that no job uses do not matter
		}
		if history == unrecorded { // other processes cannot know the blocks' history yet, so the rest is dropped
			if list, _ = takeFrom(blocks, n); len(list) == n {
				return list, nil
			}
			continue
		}
		s.ids.put(blocks, history)
	}
}

// DropIDs drops the remaining reserved ids after one of them was found to be in use. The next ids come from a new block.
func (s *Store) DropIDs() {
	s.ids.mu.Lock()
	defer s.ids.mu.Unlock()
	s.ids.spans = nil
}

// unrecorded stands for a history that has begun in a transaction that is rolled back.
const unrecorded = "unrecorded"

// idBlock is a block of ids reserved by the database.
type idBlock struct {
	first   int64
	history string // empty if the cluster's identity has changed
	inUse   bool
}

// reserveBlocks reserves at least n blocks or, if spare is true, a single id. If the cluster's identity has changed, or a block contains
// ids in use, it moves the sequence first. It uses the store's own pool if db is nil, and otherwise a transaction that is rolled back. If a
// new history begins in that transaction, it returns unrecorded.
func reserveBlocks(ctx context.Context, s *Store, db DB, n int, spare bool) (spans []span, history string, err error) {
	settled, begins := "", false
	for range 5 {
		sql, by, size := idBlocksSQL, args{{"settled", settled != ""}, {"blocks", n}}, int64(blockSize)
		if spare {
			sql, by, size = spareIDSQL, by[:1], 1
		}
		values, err := sql.bind(by)
		if err != nil {
			return nil, "", err
		}
		list, err := QueryOrRows(ctx, s, db, scanBlock, sql.text, values...)
		if err != nil {
			return nil, "", err
		}
		if len(list) == 0 {
			if settled, begins, err = settleHistory(ctx, s, db); err != nil {
				return nil, "", err
			}
			continue
		}
		if history = list[0].history; history == "" {
			history = settled // this role can read a part of the identity that the functions' owner cannot
		}
		var inUse int64
		for _, b := range list {
			if b.inUse {
				inUse, spare = b.first, false
			} else {
				spans = append(spans, span{b.first, b.first + size})
			}
		}
		switch {
		case len(spans) >= n && begins && db != nil:
			return spans, unrecorded, nil
		case len(spans) >= n:
			s.cluster.learn(history)
			return spans, history, nil
		}
		if _, err := QueryOrRows(ctx, s, db, pgx.RowTo[bool], advanceIDsSQL, inUse); err != nil {
			return nil, "", err
		}
	}
	return nil, "", errors.New("every block holds ids of jobs: the sequence job_ids is behind the ids in use")
}

func scanBlock(row pgx.CollectableRow) (b idBlock, err error) {
	return b, row.Scan(&b.first, &b.history, &b.inUse)
}
