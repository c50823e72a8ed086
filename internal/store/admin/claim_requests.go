package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// askClaimSQL adds a request to the pod that is running a job, and returns that pod. It adds none if another engine runs the job,
	// because engines do not answer; an engine's pod id is a version 8 UUID. Plan: live_pkey and pods_pkey, one row each.
	askClaimSQL = `
with asked as (
	insert into trapeze.claim_requests (pod, job_id, fence, what, priority)
	select l.pod, l.id, l.fence, $2, $3 from trapeze.live l where l.id = $1 and l.state = 'running' and substr(l.pod::text, 15, 1) <> '8'
	returning id, pod, fence
)
select a.id, a.pod::text, a.fence, coalesce((select p.name from trapeze.pods p where p.id = a.pod), '') from asked a`
	// claimAnswerSQL reads the answer to a request, and whether the pod still holds the claim. Plan: claim_requests_pkey, live_pkey.
	claimAnswerSQL = `
select r.answered_at, coalesce(r.answer, ''), exists (select from trapeze.live l where l.id = r.job_id and l.fence = r.fence and l.state = 'running')
from trapeze.claim_requests r where r.id = $1`
	// removeRequestSQL deletes a request. Plan: claim_requests_pkey.
	removeRequestSQL = `delete from trapeze.claim_requests where id = $1`
)

// Asked is a request to the pod that holds a claim.
type Asked struct {
	ID    int64
	PodID string
	Fence int64
	Pod   string // name of the pod or remote worker
}

// Answer is a pod's answer to a request.
type Answer struct {
	At   *time.Time // nil until the pod has answered
	Text string
	Held bool // the pod still holds the claim
}

// ask adds a request to the pod that is running a job. The pod is notified on commit. ask returns nil if the job is not running.
func ask(ctx context.Context, s *store.Store, tx pgx.Tx, id int64, what string, priority *int) (*Asked, error) {
	found, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[Asked], askClaimSQL, id, what, priority)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], s.NotifySettings(ctx, tx)
}

// AskStack asks the pod that is running a job for the stack of the job's handler. It returns [job.ErrNotFound] if the job does not exist,
// and [job.ErrNotRunning] if no pod is running it.
func AskStack(ctx context.Context, s *store.Store, id int64, actor string) (request Asked, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		a, err := ask(ctx, s, tx, id, store.RequestStack, nil)
		switch {
		case err != nil:
			return err
		case a == nil:
			exists, err := store.Query(ctx, s, tx, pgx.RowTo[int64], jobExistsSQL, id)
			if err == nil && len(exists) == 0 {
				err = job.ErrNotFound
			}
			return orElse(err, job.ErrNotRunning)
		}
		request = *a
		return auditIn(ctx, s, tx, AuditEntry{Actor: actor, Action: "job.stack", Target: jobTarget(id)})
	})
	if err != nil {
		err = fmt.Errorf("read the stack of job %d: %w", id, err)
	}
	return request, err
}

// ReadAnswer reads the answer to a request.
func ReadAnswer(ctx context.Context, s *store.Store, request int64) (Answer, error) {
	found, err := store.Rows(ctx, s, pgx.RowToStructByPos[Answer], claimAnswerSQL, request)
	if err != nil || len(found) == 0 {
		return Answer{}, err // the request is so old that maintenance has removed it
	}
	return found[0], nil
}

// RemoveRequest removes a request.
func RemoveRequest(ctx context.Context, s *store.Store, request int64) error {
	_, err := store.Rows(ctx, s, pgx.RowTo[int64], removeRequestSQL, request)
	return err
}
