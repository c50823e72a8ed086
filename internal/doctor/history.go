package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// historyRecent is the age up to which a timeline change is reported as a warning.
const historyRecent = 24 * time.Hour

// history detects a failover or restore that may have lost commits, and a job ID sequence that has fallen behind the IDs in use.
func (e *examination) history(ctx context.Context) error {
	c, err := store.ReadClusterState(ctx, e.store)
	if errors.Is(err, store.ErrNoCluster) {
		e.find("history", Failing, "the table cluster has no row, so the heartbeats of all pods fail",
			fmt.Sprintf("psql -c 'insert into %s.cluster (history) values (gen_random_uuid())'", e.store.Schema()))
		return nil
	}
	if err != nil {
		return err
	}
	const missing = "the latest commits before it may be missing"
	switch {
	case !c.Settled && c.Agreed != 0:
		e.find("history", Warning, fmt.Sprintf("timeline changed (%d, was %d), or the database was restored, and no pod has noticed yet: %s",
			c.Timeline, c.Agreed, missing), "start a pod: it advances the job ids past those that may be lost")
	case c.Changed != nil && e.now.Sub(*c.Changed) < historyRecent:
		e.find("history", Warning, fmt.Sprintf("timeline changed, or the database was restored, at %s (now timeline %d, change number %d): %s",
			c.Changed.UTC().Format(time.RFC3339), c.Timeline, c.Epoch, missing),
			"check whether the failover was asynchronous, and submit missing jobs again: docs/operating.md, \"After a failover that lost commits\"")
	case c.Timeline == 0 || !c.Known:
		e.find("history", Healthy, "PostgreSQL does not report its timeline or system identifier to this role: lost commits are not detected", "")
	default:
		e.find("history", Healthy, fmt.Sprintf("timeline %d, as recorded by the pods", c.Timeline), "")
	}
	if c.Behind() {
		e.find("ids", Failing, fmt.Sprintf("sequence behind ids: the next block begins at %d, but a job has the id %d", c.Sequence+1000, c.Highest),
			fmt.Sprintf("psql -c 'select %s.advance_job_ids(%d)'", e.store.Schema(), c.Highest))
	} else {
		e.find("ids", Healthy, "the sequence of job ids is above the ids in use", "")
	}
	return nil
}
