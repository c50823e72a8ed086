package store

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// blockSize is the increment of the sequence job_ids. nextval reserves a block of this size and returns its first id.
const blockSize = 1000

// idBlocksSQL reserves blocks of ids. It returns the history in which they were reserved, and whether a job already has an id in one of the
// blocks, as happens after a restore that left the sequence behind. It reserves nothing while a new history has yet to be recorded, unless
// @settled is true. It reads the history first, so that a block returned with a new history was reserved after the sequence was moved.
// Plan: nextval; per block one probe of jobs_pkey, which stops at the first row.
var idBlocksSQL = newStatement(`
with h as materialized (select coalesce(trapeze.history()::text, '') as history),
b as materialized (select h.history, nextval('trapeze.job_ids') as first from h cross join generate_series(1, @blocks::int) where h.history <> '' or @settled)
select b.first, b.history,
	coalesce((select true from trapeze.jobs j where j.id >= b.first and j.id < b.first + 1000 and j.id % 1000 <> 0 order by j.id limit 1), false)
from b`)

// advanceIDsSQL moves the sequence far beyond an id that is in use. Plan: a backward scan of jobs_pkey, one row.
const advanceIDsSQL = `select trapeze.advance_job_ids($1)`

// ids assigns job ids from blocks of the sequence, so that a job's id is known before its row is committed.
type ids struct {
	mu      sync.Mutex
	history string // the history in which the blocks were reserved
	spans   []span
}

type span struct{ next, end int64 }

// NewIDs returns n job ids that are not in use and are never assigned again.
func (s *Store) NewIDs(ctx context.Context, n int) ([]int64, error) {
	s.ids.mu.Lock()
	defer s.ids.mu.Unlock()
	if known := s.cluster.History(); known != s.ids.history {
		s.ids.spans, s.ids.history = nil, known
	}
	list := make([]int64, 0, n)
	for {
		for len(list) < n && len(s.ids.spans) > 0 {
			head := &s.ids.spans[0]
			if head.next%blockSize != 0 { // multiples of blockSize are reserved for trapeze.single_job_id
				list = append(list, head.next)
			}
			if head.next++; head.next == head.end {
				s.ids.spans = s.ids.spans[1:]
			}
		}
		if len(list) == n {
			return list, nil
		}
		blocks, history, err := reserveBlocks(ctx, s, (n-len(list)+blockSize-1)/blockSize)
		if err != nil {
			return nil, fmt.Errorf("reserve job ids: %w", err)
		}
		if history != s.ids.history {
			list, s.ids.spans, s.ids.history = list[:0], nil, history
		}
		s.ids.spans = append(s.ids.spans, blocks...)
	}
}

// DropIDs drops the remaining reserved ids after one of them was found to be in use. The next ids come from a new block.
func (s *Store) DropIDs() {
	s.ids.mu.Lock()
	defer s.ids.mu.Unlock()
	s.ids.spans = nil
}

// idBlock is a block of ids reserved by the database.
type idBlock struct {
	first   int64
	history string // empty if the cluster's identity has changed
	inUse   bool
}

// reserveBlocks reserves at least n blocks. If the cluster's identity has changed, or a block contains ids in use, it moves the sequence
// first.
func reserveBlocks(ctx context.Context, s *Store, n int) (spans []span, history string, err error) {
	settled := ""
	for range 5 {
		list, err := run(ctx, s, scanBlock, idBlocksSQL, args{{"blocks", n}, {"settled", settled != ""}})
		if err != nil {
			return nil, "", err
		}
		if len(list) == 0 {
			if settled, err = s.SettleHistory(ctx); err != nil {
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
				inUse = b.first
			} else {
				spans = append(spans, span{b.first, b.first + blockSize})
			}
		}
		if len(spans) >= n {
			s.cluster.learn(history)
			return spans, history, nil
		}
		if _, err := Rows(ctx, s, pgx.RowTo[bool], advanceIDsSQL, inUse); err != nil {
			return nil, "", err
		}
	}
	return nil, "", errors.New("every block holds ids of jobs: the sequence job_ids is behind the ids in use")
}

func scanBlock(row pgx.CollectableRow) (b idBlock, err error) {
	return b, row.Scan(&b.first, &b.history, &b.inUse)
}
