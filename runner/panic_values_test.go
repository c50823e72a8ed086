package runner_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type wrapsItself struct{}

func (wrapsItself) Error() string   { return "itself" }
func (w wrapsItself) Unwrap() error { return w }

// A value that contains itself must not end the process or its slot, wherever a handler panics with it or returns it.
func TestCyclicPanicOrError(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	cycle := map[string]any{}
	cycle["self"] = cycle
	r := start(t, pgtest.Pool(t), runner.Options{Slots: 1}, map[string]handler{
		"panic": func(context.Context, *raw) (*runner.Outcome, error) { panic(cycle) },
		"in-tx-panic": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(context.Context, pgx.Tx) error { panic(cycle) }), nil
		},
		"error": func(context.Context, *raw) (*runner.Outcome, error) { return nil, wrapsItself{} },
		"in-tx-error": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(context.Context, pgx.Tx) error { return wrapsItself{} }), nil
		},
		"tx-error": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(pgx.Tx) error { return wrapsItself{} }, nil)
		},
	}, runner.Retry(1, soon))
	for kind, says := range map[string]string{"panic": "panic: a value of type map[", "in-tx-panic": "panic: a value of type map[", "error": "wraps itself",
		"in-tx-error": "wraps itself", "tx-error": "wraps itself"} {
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(j.State, job.Failed)
		is.True(strings.Contains(message(j), says))
	}
}
