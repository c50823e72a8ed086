package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// commandsOf are commands of different forms. Each of them changes something.
func commandsOf(r *runner.Runner, id int64) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"priority": func(ctx context.Context) error { return r.Admin("ada").SetPriority(ctx, id, 2, false) },
		"lane": func(ctx context.Context) error {
			_, err := r.Admin("ada").SetLane(ctx, "new", job.LaneChange{})
			return err
		},
		"resume": func(ctx context.Context) error {
			_, err := r.Admin("ada").UndrainLane(ctx, job.DefaultLane)
			return err
		},
		"cancel": func(ctx context.Context) error { _, err := r.Admin("ada").Cancel(ctx, id); return err },
		"schedule": func(ctx context.Context) error {
			_, err := r.Admin("ada").TriggerSchedule(ctx, "daily", nil)
			return err
		},
		"enqueue": func(ctx context.Context) error { _, err := r.Enqueue(ctx, rawArgs("k")); return err },
		"keyed": func(ctx context.Context) error {
			_, err := r.Enqueue(ctx, rawArgs("k"), runner.IdempotencyKey("i"))
			return err
		},
	}
}

func TestCommandWithoutConnection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := viaPooler(t, pgtest.Pooler(t, pgtest.URL(t), 1))
	r := newRunner(t, pool, runner.Options{DirectURL: "off"}, map[string]handler{"k": succeed})
	id := enqueue(t, r, rawArgs("k"))
	_, err := r.Admin("ada").SetSchedule(t.Context(), "daily", job.ScheduleChange{Expression: new("@daily"), Kind: new("k")})
	is.NoErr(err)
	is.NoErr(pgx.BeginFunc(t.Context(), pool, func(pgx.Tx) error { // holds the only connection to the server
		for name, do := range commandsOf(r, id) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			err := do(ctx)
			cancel()
			if errors.Is(err, job.ErrOutcomeUnknown) || !store.Transient(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		return nil
	}))
}
