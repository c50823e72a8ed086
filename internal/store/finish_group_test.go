package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// The group waits for a row that another transaction is changing, and then sees the changed row. It writes nothing for a claim that was
// lost or cancelled in the meantime.
func TestFinishGroupConcurrentChanges(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"a cancel": `update trapeze.live set cancel_requested = true where id = $1`,
		"a loss":   `update trapeze.live set pod = gen_random_uuid() where id = $1`,
		"nothing":  `update trapeze.live set priority = priority where id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			podID := w.pod("a")
			w.exec(`create table mine (job bigint)`)
			w.put(plain, plain, plain)
			claimed := w.claims(podID, 3)
			g := store.Group{PodID: podID, LockWait: time.Minute, Idle: time.Minute, Sending: func() error { return nil },
				Queue: func(id int64, batch *pgx.Batch) { batch.Queue(`insert into mine values ($1)`, id) }}
			for _, c := range claimed {
				g.Ends = append(g.Ends, ending(c))
			}
			changed := claimed[1].ID
			tx, err := w.pool.Begin(w.ctx())
			w.is.NoErr(err)
			defer func() { _ = tx.Rollback(w.ctx()) }()
			_, err = tx.Exec(w.ctx(), change, changed)
			w.is.NoErr(err)
			finish := async(func() (map[int64]store.Ended, error) { return store.FinishGroup(w.ctx(), w.Store, w.pool, g) })
			w.waiting(1)
			w.is.NoErr(tx.Commit(w.ctx()))
			ended, err := finish()
			w.is.NoErr(err)
			_, there := ended[changed]
			w.is.Equal(there, name == "nothing")
			w.is.Equal(w.count(`select count(*) from mine where job = $1`, changed) == 1, there)
			w.is.Equal(w.count(`select count(*) from mine`), len(ended))
			w.is.True(len(ended) >= 2)
			w.is.Equal(w.at(claimed[0].ID).State, job.Succeeded)
		})
	}
}
