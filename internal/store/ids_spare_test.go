package store_test

import (
	"sync"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
)

// process returns a store that stands for a process that has not submitted a job yet.
func (w *world) process() *store.Store {
	w.t.Helper()
	s, err := store.New(w.ctx(), w.pool, store.Options{Connections: 1})
	w.is.NoErr(err)
	w.t.Cleanup(s.Close)
	return s
}

// oneID returns the id that a process assigns to its next job.
func (w *world) oneID(s *store.Store) int64 {
	w.t.Helper()
	ids, err := s.NewIDs(w.ctx(), 1)
	w.is.NoErr(err)
	return ids[0]
}

func (w *world) first() int64 { return w.oneID(w.process()) }

func TestIDBlockSharedByProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const processes = 8
	var all sync.WaitGroup
	ids := make([]int64, processes)
	for i := range ids {
		all.Go(func() { ids[i] = w.first() })
	}
	all.Wait()
	seen := map[int64]bool{}
	for _, id := range ids {
		seen[id] = true
		w.is.True(id > 0 && id < processes+1) // all ids come from the first block
	}
	w.is.Equal(len(seen), processes)

	s := w.process()
	for _, id := range []int64{processes + 1, store.BlockSize + 1, store.BlockSize + 2} { // a process that submits more jobs reserves a block
		w.is.Equal(w.oneID(s), id)
	}

	w.exec(`update trapeze.cluster set spare_id = 999`)
	w.is.Equal(w.first(), int64(999))
	w.is.Equal(w.first(), int64(2*store.BlockSize+1)) // the shared block is used up; multiples of 1,000 are never assigned
	w.exec(`insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id) values ($1, 'k', 'default', '', '{}', $1)`, int64(2*store.BlockSize+2))
	w.is.Equal(w.first(), int64(3*store.BlockSize+1)) // the block is abandoned because one of its ids is in use, for example after a restore
	w.exec(`insert into trapeze.jobs (id, kind, lane, subject, args, pipeline_id) select i, 'k', 'default', '', '{}', i from generate_series(3002, 4001, 999) i`)
	w.is.True(w.first() > jump) // ids in the next block are also in use, so the sequence jumps ahead

	w.exec(`delete from trapeze.jobs`)
	w.promoted()
	before := w.first()
	w.is.True(before > jump)
	w.is.True(w.first() == before+1)
}
