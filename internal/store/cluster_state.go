package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

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
