package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// tokenSQL keeps the token of a job that is to be completed from outside; one that it has stays, so that what was handed out by an
// earlier try counts. Plan: Index Scan on live_pkey, one row.
//
// #nosec G101 -- it is handed one, and holds none
var tokenSQL = newStatement(`
insert into trapeze.deferrals (id, token)
select id, @token from trapeze.live where id = @id and fence = @fence and pod = @boot
on conflict (id) do update set token = deferrals.token
returning token`)

// Token keeps a token for a job, or returns the one that it has: [job.ErrLeaseLost] when the claim is not ours.
func (s *Store) Token(ctx context.Context, l job.Lease, token string) (string, error) {
	found, err := run(ctx, s, pgx.RowTo[string], tokenSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"boot", l.Pod}, {"token", token}})
	if err != nil {
		return "", fmt.Errorf("keep the token of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("keep the token of job %d: %w", l.JobID, s.Lost(ctx, l))
	}
	return found[0], nil
}
