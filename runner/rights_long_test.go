//go:build long

package runner_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The permissions in the guide are exactly those that a program that only submits jobs needs.
func TestGuideSubmitRights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	role, pool, owner := given(t, "A role that submits only", "trapeze_submit")
	kinds := map[string]handler{"k": succeed, "l": succeed}
	start(t, owner, runner.Options{}, kinds)
	submit := func() error {
		r, err := runner.New(pool, runner.Options{}) // a new runner has to reserve ids
		if err != nil {
			return err
		}
		defer r.Close()
		for kind, handler := range kinds {
			runner.HandleRaw(r, kind, handler)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		made, err := r.Enqueue(ctx, rawArgs("k"), runner.Subject("s"), runner.Delay(time.Millisecond))
		if err != nil {
			return err
		}
		if _, err := runner.Result[any](ctx, r, made.ID); err != nil {
			return err
		}
		for range 2 { // the second submission in each pair is a duplicate
			for _, options := range [][]runner.EnqueueOption{
				{runner.Unique("u", runner.WhileActive), runner.Delay(time.Hour)}, {runner.IdempotencyKey("i")}, {runner.NeedsApproval()},
			} {
				if _, err := r.Enqueue(ctx, runner.Chain(rawArgs("k"), rawArgs("l")), options...); err != nil {
					return err
				}
			}
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := r.EnqueueManyTx(ctx, tx, many("k", 200)); err != nil {
					return err
				}
				_, err := r.EnqueueTx(ctx, tx, rawArgs("k"), runner.Unique("w", runner.WhilePending), runner.IdempotencyKey("j"))
				return err
			})
			if err != nil {
				return err
			}
			if _, err := r.EnqueueMany(ctx, []job.Args{rawArgs("k"), rawArgs("l")}); err != nil {
				return err
			}
		}
		return nil
	}
	is.NoErr(submit())
	r := newRunner(t, pool, runner.Options{}, kinds)
	err := r.Run(t.Context())
	is.True(err != nil && strings.Contains(err.Error(), "permission denied")) // the role may not run jobs
	_, err = r.Admin("ann").Cancel(t.Context(), enqueue(t, r, rawArgs("k"), runner.Delay(time.Hour)))
	is.True(err != nil && strings.Contains(err.Error(), "permission denied"))

	for row := range strings.SplitSeq(strings.Join(column[string](t, owner, `select lower(privilege_type) || ' ' || table_name
		from information_schema.role_table_grants where grantee = $1 order by 1`, role), "\n"), "\n") {
		verb, table, _ := strings.Cut(row, " ")
		if row == "update submissions" {
			continue // needed only if ids are in use after a failover
		}
		pgtest.Exec(t, owner, `revoke `+verb+` on trapeze.`+table+` from `+role)
		if submit() == nil {
			t.Errorf("no statement needs the permission to %s %s", verb, table)
		}
		pgtest.Exec(t, owner, `grant `+verb+` on trapeze.`+table+` to `+role)
	}
}
