//go:build long

package store_test

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// Moving a lane's jobs reads each job once, even if the table is empty according to the planner's statistics.
func TestLaneMoveOfBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('other')`)
	w.exec(`alter table trapeze.live set (autovacuum_enabled = false)`)
	w.exec(`alter table trapeze.parked set (autovacuum_enabled = false)`)
	w.exec(`analyze trapeze.live, trapeze.parked`)
	const backlog = 20_000
	w.exec(`insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
		select i, now(), 1, 0, 'pending', 'default', 'k', '' from generate_series(1, $1::int) i`, backlog)
	w.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject)
		select $1::int + i, 'scheduled', now(), 1, 0, 'default', 'k', '' from generate_series(1, $1::int) i`, backlog)
	began := time.Now()
	moved, skipped, err := admin.Move(w.ctx(), w.Store, admin.Moving{From: "default", To: "other"}, "ann")
	w.is.NoErr(err)
	w.is.Equal([]int{moved, skipped}, []int{2 * backlog, 0})
	w.is.True(time.Since(began) < 10*time.Second) // takes 0.5 s, or half a minute if each row is compared with all rows of the page
	w.exec(`truncate trapeze.live, trapeze.parked, trapeze.job_events`)
}
