package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestSnoozeCountAndAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(about("s"))[0]
	c := w.claimOne(a)
	w.is.Equal(c.Snoozes, 0)
	due, err := w.Snooze(w.ctx(), leaseOf(a, c), 1, time.Hour, store.Retry{Message: "GPU busy"})
	w.is.NoErr(err)
	w.is.True(time.Until(due) > 59*time.Minute)
	j := w.at(id)
	w.is.Equal([]any{j.State, *j.Reason, j.Attempt, j.Pod == nil, j.Progress == nil}, []any{job.Pending, job.Reason("snooze"), 0, true, true})
	w.is.Equal(w.count(`select count(*) from trapeze.subjects where state = 'held'`), 0) // its subject is free
	w.exec(`update trapeze.parked set run_after = now()`)
	w.promote(1)
	c = w.claimOne(b)
	w.is.Equal([]int64{int64(c.Snoozes), c.Fence, int64(c.Attempt)}, []int64{1, 2, 1}) // the claim returns the number of snoozes
	w.is.NoErr(w.Progress(w.ctx(), leaseOf(b, c), job.Progress{Message: ptr("again")}))
	w.dies(b, a)
	c = w.claimOne(a)
	w.is.Equal(c.Snoozes, 1) // the number survives both a crash and a progress report
	_, err = w.Snooze(w.ctx(), leaseOf(a, c), 2, 0, store.Retry{Message: "GPU still busy"})
	w.is.NoErr(err)

	list, err := view.JobEvents(w.ctx(), w.Store, id, 0, 100)
	w.is.NoErr(err)
	var said []string
	var counts []int
	for _, e := range list {
		if e.Event != "job.snoozed" {
			continue
		}
		var fields struct {
			Count   int   `json:"count"`
			DelayMS int64 `json:"delay_ms"`
		}
		w.is.NoErr(json.Unmarshal(e.Fields, &fields))
		said, counts = append(said, *e.Message), append(counts, fields.Count, int(fields.DelayMS))
	}
	w.is.Equal(said, []string{"GPU busy", "GPU still busy"})
	w.is.Equal(counts, []int{1, 3_600_000, 2, 0})
}

func TestSnoozeCountAfterRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	c := w.claimOne(podID)
	_, err := w.Park(w.ctx(), leaseOf(podID, c), 0, store.Retry{Message: "boom"})
	w.is.NoErr(err)
	w.is.Equal(w.count(`select count(*) from trapeze.job_progress`), 0) // a retry after an error writes nothing to job_progress
	w.promote(1)
	c = w.claimOne(podID)
	w.is.Equal([]int{c.Attempt, c.Snoozes}, []int{2, 0})
}

func TestLateSnooze(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	id := w.put(plain)[0]
	old := w.claimOne(a)
	w.dies(a, b)
	_, err := w.Snooze(w.ctx(), leaseOf(a, old), 1, time.Hour, store.Retry{Message: "late"})
	w.is.True(err != nil) // the lease is lost
	c := w.claimOne(b)
	_, err = admin.Cancel(w.ctx(), w.Store, id, 0, false, "ann", ignoreLease)
	w.is.NoErr(err)
	_, err = w.Snooze(w.ctx(), leaseOf(b, c), 1, time.Hour, store.Retry{Message: "cancelled"})
	w.is.True(err != nil) // the cancel request takes precedence
	w.is.Equal(w.count(`select count(*) from trapeze.job_progress`), 0)
}
