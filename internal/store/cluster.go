package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// cluster holds the history of the database cluster that a process has last read. The stores of a process share it.
type cluster struct{ history atomic.Pointer[string] }

// History returns the history that the process has last seen: empty before the first.
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

// History returns the history of the database that the process has last seen; another one means that a standby was promoted or a
// backup restored, so that the latest commits may be missing. It is empty before the first statement that reads it.
func (s *Store) History() string { return s.cluster.History() }

// settleHistorySQL writes the identity of the cluster down, and begins a new history if it has changed: see migration 24.
// Plan: primary key of cluster.
const settleHistorySQL = `select coalesce(trapeze.settle_history()::text, '')`

// SettleHistory writes down which cluster this is, after a statement has found another one than before, and returns the history.
// Of many that come at once the first begins the new history.
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

// nextFence is the fence of the next claim of a row p: higher than that of any claim in an earlier epoch, whose commit may be lost.
// The epoch is the one that settle_history() is going to write if no pod has noticed the new timeline yet.
const nextFence = `p.fence % 10000000000 + 1 + greatest(p.fence - p.fence % 10000000000, 10000000000 * (
		select c.epoch + greatest(trapeze.timeline() - c.timeline, 0) from trapeze.cluster c where c.one))`

// FirstClaim reports whether no claim of the job before this one is known.
func (c *Claimed) FirstClaim() bool { return c.Fence%fencesPerEpoch == 1 }

// clusterStateSQL reads the identity of the cluster that the pods have agreed on, and the present one. Plan: cluster_pkey; jobs_pkey backwards: none, but for ids that the database made itself.
const clusterStateSQL = `
select coalesce(c.timeline, 0), coalesce(i.timeline, 0), coalesce(i.system_id, 0) <> 0, trapeze.history() is not null, c.epoch, c.changed_at,
	coalesce((select j.id from trapeze.jobs j where j.id >= s.last_value + 1000 and j.id < s.last_value + 1000000000 and j.id % 1000 <> 0
		order by j.id desc limit 1), 0), s.last_value
from trapeze.cluster c cross join trapeze.cluster_identity() i cross join trapeze.job_ids s where c.one`

// ClusterState is the state of the cluster's identity and of the sequence of job ids.
type ClusterState struct {
	Agreed   int  // the timeline that the pods know; 0: none
	Timeline int  // now; 0: PostgreSQL does not tell
	Known    bool // PostgreSQL tells the system identifier
	Settled  bool // the identity is the one that the pods know
	Epoch    int64
	Changed  *time.Time // when pods last found another identity; nil: never
	Highest  int64      // of the ids of jobs that the sequence is going to hand out, among the next thousand million; 0: none
	Sequence int64      // the block of ids that was reserved last
}

// Behind reports whether the sequence is going to hand out ids that are in use.
func (c ClusterState) Behind() bool { return c.Highest >= c.Sequence+blockSize }

// ReadClusterState reads the state of the cluster's identity.
func ReadClusterState(ctx context.Context, s *Store) (ClusterState, error) {
	found, err := Rows(ctx, s, pgx.RowToStructByPos[ClusterState], clusterStateSQL)
	if err != nil {
		return ClusterState{}, fmt.Errorf("read the identity of the cluster: %w", err)
	}
	return found[0], nil
}
