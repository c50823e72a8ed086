package store_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

// A job that starts while the pods' states are being read must be counted. Otherwise, the count could miss both the job and its pod.
func TestRunningJobCountOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	tx, err := w.pool.Begin(w.ctx())
	w.is.NoErr(err)
	_, err = tx.Exec(w.ctx(), `lock table trapeze.pods in access exclusive mode`)
	w.is.NoErr(err)
	counted := async(func() (int, error) {
		n, _, err := admin.Running(w.ctx(), w.Store, admin.Scope{})
		return n, err
	})
	w.waiting(1)
	_, err = tx.Exec(w.ctx(), `insert into trapeze.live (id, ready_at, event_no, priority, state, pod, lane, kind, subject)
		values (1, now(), 1, 0, 'running', $1, 'default', 'k', '')`, podID)
	w.is.NoErr(err)
	w.is.NoErr(tx.Commit(w.ctx()))
	n, err := counted()
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	w.exec(`delete from trapeze.live`)
}

// drainedNow returns the drain state of each pod with the given name.
func (w *world) drainedNow(name string) string {
	w.t.Helper()
	var list string
	w.is.NoErr(w.pool.QueryRow(w.ctx(), `select string_agg(case when drained then 'drained' else 'open' end, ' ' order by started_at) from trapeze.pods where name = $1`,
		name).Scan(&list))
	return list
}

func TestPodRegistrationDuringDrain(t *testing.T) {
	t.Parallel()
	t.Run("the drain comes first", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		old := w.pod("web")
		// The drain has been written but not committed yet when the process registers.
		release := w.freeze(`update trapeze.pods set drained = true where id = $1::uuid`, old)
		registered := async(func() (bool, error) {
			return true, w.Register(context.Background(), store.PodInfo{PodID: uuid.NewString(), Name: "web", Kinds: []string{"k"}, Slots: 1}, lease)
		})
		w.waiting(1)
		release(true)
		_, err := registered()
		w.is.NoErr(err)
		w.is.Equal(w.drainedNow("web"), "drained drained")
	})
	t.Run("the process comes first", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		old := w.pod("web")
		// The process has registered but not committed yet when the drain begins.
		release := w.freeze(store.RegisterSQL.Text(), uuid.NewString(), "web", "v", []string{"k"}, 1, "{}", []string{}, int64(60_000), nil)
		drain := func(pod string) func() ([]string, error) {
			return async(func() ([]string, error) {
				_, podIDs, err := admin.DrainPod(context.Background(), w.Store, pod, true, "ann")
				return podIDs, err
			})
		}
		one := drain(old)
		w.waiting(1)
		release(true)
		podIDs, err := one()
		w.is.NoErr(err)
		w.is.Equal(len(podIDs), 1) // a drain by pod id affects only that pod
		w.is.Equal(w.drainedNow("web"), "drained open")

		release = w.freeze(store.RegisterSQL.Text(), uuid.NewString(), "web", "v", []string{"k"}, 1, "{}", []string{}, int64(60_000), nil)
		all := drain("web")
		w.waiting(1)
		release(true)
		podIDs, err = all()
		w.is.NoErr(err)
		w.is.Equal(len(podIDs), 3) // all pods with the name are drained, including one that was not visible when the drain began
		w.is.Equal(w.drainedNow("web"), "drained drained drained")
	})
	t.Run("the other process had closed before", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.pod("web")
		w.exec(`update trapeze.pods set closed_at = now(), started_at = started_at + interval '1 second' where id = $1::uuid`, w.pod("web"))
		_, podIDs, err := admin.DrainPod(w.ctx(), w.Store, "web", true, "ann")
		w.is.NoErr(err)
		w.is.Equal(len(podIDs), 1) // the other pod is closed, so it does not have to be drained
		w.pod("web")
		w.is.Equal(w.count(`select count(*) from trapeze.pods where name = 'web' and closed_at is null and not drained`), 0)
	})
}
