package store

import (
	"context"
	"errors"
	"fmt"
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

// ids assigns job ids from blocks of the sequence, so that a job's id is known before its row is committed.
type ids struct {
	mu      sync.Mutex
	history string // the history in which the blocks were reserved
	spans   []span
	begun   bool // whether ids have been reserved before
}

type span struct{ next, end int64 }

// NewIDs returns n job ids that are unused and will never be reassigned. The first job of a process gets its id from a block that all
// processes share, so that a program that submits only one job does not use up a whole block.
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
		blocks, history, err := reserveBlocks(ctx, s, (n-len(list)+blockSize-1)/blockSize, n == 1 && !s.ids.begun)
		if err != nil {
			return nil, fmt.Errorf("reserve job ids: %w", err)
		}
		s.ids.begun = true
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

// reserveBlocks reserves at least n blocks or, if spare is true, a single id. If the cluster's identity has changed, or a block contains
// ids in use, it moves the sequence first.
func reserveBlocks(ctx context.Context, s *Store, n int, spare bool) (spans []span, history string, err error) {
	settled := ""
	for range 5 {
		sql, by, size := idBlocksSQL, args{{"settled", settled != ""}, {"blocks", n}}, int64(blockSize)
		if spare {
			sql, by, size = spareIDSQL, by[:1], 1
		}
		list, err := run(ctx, s, scanBlock, sql, by)
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
				inUse, spare = b.first, false
			} else {
				spans = append(spans, span{b.first, b.first + size})
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
