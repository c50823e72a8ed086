package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// cluster holds the history of the database cluster that a process last read. The stores of a process share it.
type cluster struct{ history atomic.Pointer[string] }

// History returns the history that the process last read: empty before the first.
func (c *cluster) History() string {
	if known := c.history.Load(); known != nil {
		return *known
	}
	return ""
}

func (c *cluster) learn(history string) {
	if c.History() != history {
		c.history.Store(&history)
	}
}

// History returns the history of the database that the process last read. If it changes, a standby was promoted or a backup restored, and
// the latest commits may be missing. It is empty before the first statement that reads it.
func (s *Store) History() string { return s.cluster.History() }

// settleHistorySQL records the identity of the cluster, and begins a new history if it has changed: see migration 24. Plan: primary key of
// cluster.
const settleHistorySQL = `select coalesce(trapeze.settle_history()::text, '')`

// SettleHistory records the identity of the cluster after a statement has found that it has changed, and returns the history. The first of
// several concurrent calls begins the new history.
func (s *Store) SettleHistory(ctx context.Context) (string, error) {
	found, err := Rows(ctx, s, pgx.RowTo[string], settleHistorySQL)
	switch {
	case err != nil:
		return "", fmt.Errorf("settle the history of the database: %w", err)
	case found[0] == "":
		return "", errors.New("settle the history of the database: the table cluster has no row")
	}
	s.cluster.learn(found[0])
	return found[0], nil
}

// fencesPerEpoch is the number of fences that a job has in an epoch. A fence is epoch × fencesPerEpoch + the number of claims whose commits
// are kept: a decimal number, so that people can read it, and exact in JavaScript for 900,000 epochs.
const fencesPerEpoch = 10_000_000_000

// nextFence is the fence of the next claim of a row p: higher than that of any claim in an earlier epoch, whose commit may be lost. If no
// pod has noticed a new timeline yet, the epoch is the one that settle_history() will write.
const nextFence = `p.fence % 10000000000 + 1 + greatest(p.fence - p.fence % 10000000000, 10000000000 * (
		select c.epoch + greatest(trapeze.timeline() - c.timeline, 0) from trapeze.cluster c where c.one))`

// FirstClaim reports whether no earlier claim of the job is known.
func (c *Claimed) FirstClaim() bool { return c.Fence%fencesPerEpoch == 1 }

// clusterStateSQL reads the identity of the cluster that the pods know, and the present one. Plan: cluster_pkey; jobs_pkey backwards: none,
// except for ids that the database assigned itself.
const clusterStateSQL = `
select coalesce(c.timeline, 0), coalesce(i.timeline, 0), coalesce(i.system_id, 0) <> 0, trapeze.history() is not null, c.epoch, c.changed_at,
	coalesce((select j.id from trapeze.jobs j where j.id >= s.last_value + 1000 and j.id < s.last_value + 1000000000 and j.id % 1000 <> 0
		order by j.id desc limit 1), 0), s.last_value
from trapeze.cluster c cross join trapeze.cluster_identity() i cross join trapeze.job_ids s where c.one`

// ClusterState is the state of the cluster's identity and of the sequence of job ids.
type ClusterState struct {
	Agreed   int  // the timeline that the pods know; 0: none
	Timeline int  // now; 0: PostgreSQL does not report it
	Known    bool // PostgreSQL reports the system identifier
	Settled  bool // the identity is the one that the pods know
	Epoch    int64
	Changed  *time.Time // when pods last found another identity; nil: never
	Highest  int64      // the highest job id in use among the next thousand million of the sequence; 0: none
	Sequence int64      // the block of ids that was last reserved
}

// Behind reports whether the sequence will return ids that are in use.
func (c ClusterState) Behind() bool { return c.Highest >= c.Sequence+blockSize }

// ReadClusterState returns the state of the cluster's identity.
func ReadClusterState(ctx context.Context, s *Store) (ClusterState, error) {
	found, err := Rows(ctx, s, pgx.RowToStructByPos[ClusterState], clusterStateSQL)
	if err != nil {
		return ClusterState{}, fmt.Errorf("read the identity of the cluster: %w", err)
	}
	return found[0], nil
}
