//go:build long

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestCommandOriginInAuditLog(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{
		"waits": func(ctx context.Context, _ *raw) (*runner.Outcome, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		"defers": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			_, err := j.Token(ctx)
			return runner.Deferred(2), err
		},
	})
	ctx := job.WithOrigin(t.Context(), job.Origin{Source: "cli", Reason: "the provider is down"})
	running := enqueueStarted(t, r, rawArgs("waits"))
	_, err := r.Admin("ann").Cancel(ctx, running)
	is.NoErr(err)
	inState(t, r, running, job.Cancelled)
	_, err = r.Admin("ann").Cancel(ctx, running)
	is.True(errors.Is(err, job.ErrAlreadyTerminal))
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", running)), []string{"job.cancel by ann"})
	rows, err := admin.AuditTrail(t.Context(), inside.Of(r).Store, admin.AuditFilter{})
	is.NoErr(err)
	is.Equal([]string{rows[0].Source, rows[0].Reason}, []string{"cli", "the provider is down"})

	stopped := enqueueStarted(t, r, rawArgs("waits"))
	_, err = r.Admin("").ForceCancel(ctx, stopped)
	is.NoErr(err)
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", stopped)), []string{"job.force_cancel by operator"})
	asks := enqueue(t, r, rawArgs("waits"), runner.NeedsApproval())
	is.NoErr(r.Admin("bob").Approve(ctx, asks))
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", asks)), []string{"job.approve by bob"})
	defers := enqueue(t, r, rawArgs("defers"))
	inState(t, r, defers, job.Waiting)
	token, err := inside.Of(r).Store.Pool().Query(t.Context(), `select token from trapeze.deferrals where id = $1`, defers)
	is.NoErr(err)
	var secret string
	for token.Next() {
		is.NoErr(token.Scan(&secret))
	}
	is.NoErr(r.Complete(ctx, defers, secret, nil, runner.Part("a")))
	is.NoErr(r.Complete(ctx, defers, secret, nil, runner.Part("b"), runner.CompletedBy("bob")))
	is.Equal(auditEntries(t, r, fmt.Sprint("job ", defers)), []string{"job.complete by bob"}) // only the completion by a named operator is audited
}
