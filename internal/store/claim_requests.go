package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The requests that a pod can get for one of its claims.
const (
	RequestStack    = "stack"    // return the stack of the handler's goroutine
	RequestPriority = "priority" // give the next steps another priority
)

// ClaimRequest is a request to the pod that runs a claim. Heartbeats deliver it until it is answered.
type ClaimRequest struct {
	ID       int64  `json:"id"`
	JobID    int64  `json:"job_id"`
	Fence    int64  `json:"fence"`
	What     string `json:"what"`
	Priority *int   `json:"priority"`
}

// answerRequestSQL answers a request. A second answer changes nothing. Plan: claim_requests_pkey, one row.
var answerRequestSQL = newStatement(`
update trapeze.claim_requests set answered_at = now(), answer = @answer where id = @id and answered_at is null returning id`)

// AnswerRequest answers a request.
func AnswerRequest(ctx context.Context, s *Store, id int64, answer string) error {
	if _, err := run(ctx, s, pgx.RowTo[int64], answerRequestSQL, args{{"id", id}, {"answer", Some(answer)}}); err != nil {
		return fmt.Errorf("answer request %d: %w", id, err)
	}
	return nil
}
