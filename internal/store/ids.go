package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// blockSize is the increment of the sequence job_ids: nextval gives the first id of a block that is then ours.
const blockSize = 1000

const idBlocksSQL = `select nextval('trapeze.job_ids') from generate_series(1, $1::int)`

// ids hands out job ids from blocks of the sequence, so that a job's id is known before its row is committed.
type ids struct {
	mu    sync.Mutex
	spans []span
}

type span struct{ next, end int64 }

// NewIDs returns n job ids that nobody else has or will have.
func (s *Store) NewIDs(ctx context.Context, n int) ([]int64, error) {
	s.ids.mu.Lock()
	defer s.ids.mu.Unlock()
	list := make([]int64, 0, n)
	for {
		for len(list) < n && len(s.ids.spans) > 0 {
			head := &s.ids.spans[0]
			list = append(list, head.next)
			if head.next++; head.next == head.end {
				s.ids.spans = s.ids.spans[1:]
			}
		}
		if len(list) == n {
			return list, nil
		}
		blocks := (n - len(list) + blockSize - 1) / blockSize
		firsts, err := rows(ctx, s, pgx.RowTo[int64], idBlocksSQL, blocks)
		if err != nil {
			return nil, fmt.Errorf("reserve job ids: %w", err)
		}
		for _, first := range firsts {
			s.ids.spans = append(s.ids.spans, span{first, first + blockSize})
		}
	}
}
