package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// tokenSQL stores the token of a job that is completed from outside. It keeps an existing token, so that a token handed out by an earlier
// attempt stays valid. Plan: Index Scan on live_pkey, one row.
//
// #nosec G101 -- the token is an argument
var tokenSQL = newStatement(`
insert into trapeze.deferrals (id, token)
select id, @token from trapeze.live where id = @id and fence = @fence and pod = @pod
on conflict (id) do update set token = deferrals.token
returning token`)

// Token stores a token for a job, or returns the existing one. It returns [job.ErrLeaseLost] if the pod no longer holds the claim.
func (s *Store) Token(ctx context.Context, l job.Lease, token string) (string, error) {
	found, err := run(ctx, s, pgx.RowTo[string], tokenSQL, args{{"id", l.JobID}, {"fence", l.Fence}, {"pod", l.Pod}, {"token", token}})
	if err != nil {
		return "", fmt.Errorf("store the token of job %d: %w", l.JobID, err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("store the token of job %d: %w", l.JobID, s.Lost(ctx, l))
	}
	return found[0], nil
}
