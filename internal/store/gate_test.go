package store

import "testing"

// What starts while somebody counts is counted: else its pod could be heard of after that, and both would be missed.
func TestWhatRunsIsCountedAfterThePodsWereAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boot := w.pod("a")
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	_, err = tx.Exec(w.ctx(), `lock table trapeze.pods in access exclusive mode`)
	w.is.NoErr(err)
	counted := async(func() (int, error) {
		n, _, err := w.Running(w.ctx(), Scope{})
		return n, err
	})
	w.waiting(1)
	_, err = tx.Exec(w.ctx(), `insert into trapeze.live (id, ready_at, event_no, priority, state, pod, lane, kind, subject)
		values (1, now(), 1, 0, 'running', $1, 'default', 'k', '')`, boot)
	w.is.NoErr(err)
	w.is.NoErr(tx.Commit(w.ctx()))
	n, err := counted()
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	w.exec(`delete from trapeze.live`)
}
