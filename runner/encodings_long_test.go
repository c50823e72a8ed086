//go:build long

package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const latin1 = "encoding 'LATIN1' locale 'C'"

func TestUnstorableTextInLatin1(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.WithParameter(pgtest.URLWith(t, latin1), "client_encoding=UTF8"))
	long := strings.Repeat("a", 2*job.MaxErrorBytes)
	fails := func(text string) handler {
		return func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, errors.New(text) }
	}
	snoozed := false
	r := start(t, pool, runner.Options{MaxAttempts: 2}, map[string]handler{
		"ok": succeed, "arrow": fails("a → b"), "long": fails(long),
		"result": func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.Done("→"), nil
		},
		"snooze": func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			if snoozed {
				return nil, nil
			}
			snoozed = true
			return runner.Snooze(0, "→"), nil
		},
	})
	for _, options := range [][]runner.EnqueueOption{{runner.Subject("→")}, {runner.IdempotencyKey("→")}} {
		_, err := r.Enqueue(t.Context(), rawArgs("ok"), options...)
		is.True(errors.Is(err, job.ErrInvalid))
	}
	_, err := r.Enqueue(t.Context(), rawArgs("ok", `"→"`))
	is.True(errors.Is(err, job.ErrInvalid) && strings.Contains(err.Error(), "the database's encoding cannot store one of the texts"))
	id := enqueue(t, r, rawArgs("ok", `"é"`))
	is.Equal(queryOne[string](t, pool, `select args::text from trapeze.jobs where id = $1`, id), `"é"`)
	is.Equal(queryOne[int](t, pool, `select octet_length(args::text) from trapeze.jobs where id = $1`, id), 3) // one byte, as for other clients

	arrow := waitEnded(t, r, enqueue(t, r, rawArgs("arrow")))
	is.Equal(*arrow.Error, `a \u2192 b`)
	is.Equal(arrow.Attempt, 2) // the text does not use up the attempts
	is.Equal(*arrow.Reason, job.ReasonAttemptsExhausted)
	is.True(strings.HasSuffix(*waitEnded(t, r, enqueue(t, r, rawArgs("long"))).Error, "aaa..."))
	is.Equal(*waitEnded(t, r, enqueue(t, r, rawArgs("result"))).Reason, job.ReasonUnstorable)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("snooze"))).State, job.Succeeded)
}
