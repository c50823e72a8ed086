package store_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const jump = int64(1) << 32

// promoted changes the recorded timeline, as if a standby had been promoted since the pods last checked.
func (w *world) promoted() {
	w.t.Helper()
	_, err := w.SettleHistory(w.ctx())
	w.is.NoErr(err)
	w.exec(`update trapeze.cluster set timeline = timeline - 1`)
}

func (w *world) epoch() int64 {
	return pgtest.QueryOne[int64](w.t, w.pool, `select epoch from trapeze.cluster`)
}

func TestManyPodsOnPromotedStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.put(plain)[0]
	w.promoted()
	before := pgtest.QueryOne[int64](w.t, w.pool, `select last_value from trapeze.job_ids`)
	const pods = 8
	var firsts [pods]int64
	var all sync.WaitGroup
	for i := range pods {
		pod, err := w.Beside(w.ctx(), 2)
		w.is.NoErr(err)
		defer pod.Close()
		pod.ForgetCluster() // the store now behaves like one in a separate process
		all.Go(func() {
			ids, err := pod.NewIDs(w.ctx(), 1)
			if err != nil {
				t.Error(err)
				return
			}
			firsts[i] = ids[0]
		})
	}
	all.Wait()
	w.is.Equal(w.epoch(), int64(1))
	for _, id := range firsts {
		w.is.True(id >= before+jump) // the new ids are higher than any id that may have been lost
	}
	w.is.True(pgtest.QueryOne[int64](w.t, w.pool, `select last_value from trapeze.job_ids`) < first+2*jump)
}

func TestIDsDroppedAfterPromotion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	front, err := w.Beside(w.ctx(), 2)
	w.is.NoErr(err)
	defer front.Close()
	before, err := front.NewIDs(w.ctx(), 1)
	w.is.NoErr(err)
	b, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	history := b.History
	w.is.True(history != "")
	w.promoted()
	b, err = w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.True(b.History != history)
	w.is.Equal(b.History, w.History())
	after, err := front.NewIDs(w.ctx(), 1)
	w.is.NoErr(err)
	w.is.True(after[0] >= before[0]+jump)
	again, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	w.is.Equal(again.History, b.History)
	w.is.Equal(w.epoch(), int64(1))
}

// A failover can lose the commit of a claim, and the same pod can then claim the job again. The new claim must get a different fence, even
// if no pod has noticed the failover yet.
func TestFenceAfterStandbyPromotion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.put(plain)
	c := w.claimOne(podID)
	w.is.Equal(c.Fence, int64(1))
	lose := func() {
		w.exec(`update trapeze.live set state = 'pending', pod = null, claimed_at = null, started_at = null, fence = 0, attempt = 0, event_no = 1`)
		w.exec(`delete from trapeze.job_events where event = 'job.claimed'`)
	}
	lose()
	w.promoted()
	again := w.claimOne(podID)
	w.is.Equal(again.Fence, int64(store.FencesPerEpoch+1))
	w.is.True(again.FirstClaim())
	w.is.Equal(w.epoch(), int64(0)) // no pod has noticed the failover yet
	_, err := w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, again)}, "a test")
	w.is.NoErr(err)
	w.is.True(w.historyOf(podID) != "")
	w.is.Equal(w.epoch(), int64(1))
	third := w.claimOne(podID)
	w.is.Equal(third.Fence, int64(store.FencesPerEpoch+2)) // noticing the failover does not change the epoch
	w.is.True(!third.FirstClaim())
	_, err = w.HandBack(w.ctx(), podID, []job.Lease{leaseOf(podID, third)}, "a test")
	w.is.NoErr(err)
	w.exec(`update trapeze.cluster set timeline = timeline - 3`) // three promotions that no pod noticed
	w.is.Equal(w.claimOne(podID).Fence, int64(4*store.FencesPerEpoch+3))
}

func TestHistoryAfterDumpOrMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	history := w.historyOf(podID)
	for i, change := range []string{
		`refresh materialized view trapeze.feed_epoch`, // as restoring a dump does
		`update trapeze.cluster set system_id = system_id - 1`,
		`update trapeze.cluster set system_id = system_id - 1, timeline = timeline + 5`,
	} {
		w.exec(change)
		now := w.historyOf(podID)
		w.is.True(now != history)
		w.is.Equal(w.epoch(), int64(i+1))
		history = now
	}
}

func TestTruncatedTablesMissingRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	w.exec(`truncate trapeze.cluster`)
	_, err := store.ReadClusterState(w.ctx(), w.Store)
	w.is.True(errors.Is(err, store.ErrNoCluster))
	_, err = w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.True(errors.Is(err, store.ErrNoCluster))
	w.exec(`insert into trapeze.cluster (history) values (gen_random_uuid())`) // the command that doctor suggests
	w.is.True(w.historyOf(podID) != "")
	_, err = store.ReadClusterState(w.ctx(), w.Store)
	w.is.NoErr(err)
}

func (w *world) historyOf(podID string) string {
	w.t.Helper()
	b, err := w.Heartbeat(w.ctx(), podID, lease, false)
	w.is.NoErr(err)
	return b.History
}

// Some providers revoke every role's EXECUTE privilege on the functions that identify a cluster. Even so, a pod must be able to run jobs,
// including under a role that owns no objects.
func TestJobsWithoutClusterIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := "untold_" + w.pool.Config().ConnConfig.Database
	w.exec(`create role ` + role)
	t.Cleanup(func() {
		w.exec(`drop owned by ` + role)
		w.exec(`drop role ` + role)
	})
	w.exec(`grant usage on schema trapeze to ` + role)
	w.exec(`grant select, insert, update, delete on all tables in schema trapeze to ` + role)
	w.exec(`grant usage on all sequences in schema trapeze to ` + role)
	w.exec(`grant execute on function trapeze.spare_job_id() to ` + role)
	for _, as := range []string{"the owner alone may read the identity", "nobody may"} {
		w.exec(`revoke execute on function pg_control_system(), pg_current_wal_lsn() from public`)
		w.exec(`revoke select on trapeze.feed_epoch from ` + role)
		if as == "nobody may" {
			w.exec(`alter function trapeze.settle_history() owner to ` + role)
		}
		config := w.pool.Config()
		w.exec(`alter database ` + config.ConnConfig.Database + ` set role = '` + role + `'`)
		w.Pool().Reset()
		podID := w.pod("a")
		history := w.historyOf(podID)
		w.is.True(history != "")
		w.is.Equal(w.historyOf(podID), history)
		w.put(plain)
		w.is.Equal(w.claimOne(podID).Fence, int64(1))
		w.exec(`alter database ` + config.ConnConfig.Database + ` reset role`)
		w.pool.Reset()
		w.Pool().Reset()
	}
}

// The sequence can lag behind the ids in use unnoticed, for example if only the tables were restored.
func TestIDBlockInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	list := w.new(plain, plain)
	_, err := w.Enqueue(w.ctx(), uuid.NewString(), list)
	w.is.NoErr(err)
	w.exec(`select setval('trapeze.job_ids', $1, false)`, list[0].ID/store.BlockSize*store.BlockSize+1)
	w.DropIDs()
	ids, err := w.NewIDs(w.ctx(), 3000)
	w.is.NoErr(err)
	for _, id := range ids {
		w.is.True(id/store.BlockSize != list[0].ID/store.BlockSize)
	}
	w.is.True(ids[2999] > list[0].ID+jump) // other processes may have reserved the blocks in between
	_, err = store.Rows(w.ctx(), w.Store, pgx.RowTo[bool], store.AdvanceIDsSQL, list[0].ID)
	w.is.NoErr(err)
	w.is.True(pgtest.QueryOne[int64](w.t, w.pool, `select last_value from trapeze.job_ids`) < list[0].ID+2*jump) // a second call does not move the sequence again
}
