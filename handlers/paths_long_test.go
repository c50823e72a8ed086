//go:build long

package handlers_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Polling alone and the fast path alone must give the same totals. A more urgent job that waits forever, because it has no handler,
// disables the fast path in its lane. A poll interval of one hour effectively disables polling.
func TestPipelinePollVersusFastPath(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var totals [2][]handlers.UnitTotal
	for i, every := range []time.Duration{100 * time.Millisecond, time.Hour} {
		pool := pgtest.Pool(t)
		is.NoErr(handlers.Setup(t.Context(), pool, handlers.Options{}))
		r, err := runner.New(pool, runner.Options{PollInterval: every, Logger: slog.New(slog.DiscardHandler)})
		is.NoErr(err)
		defer r.Close()
		is.NoErr(handlers.Register(r, pool, handlers.Options{}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		defer func() { stop(); is.NoErr(<-ended) }()
		pgtest.Wait(t, "the pod is ready", func() bool { ready, _ := r.Ready(); return ready })
		b := &bench{Runner: r, t: t, pool: pool}
		if polls := i == 0; polls {
			_, err := r.Enqueue(t.Context(), runner.Raw{Name: "elsewhere"}, runner.AllowUnregistered(), runner.Priority(100))
			is.NoErr(err)
		}
		for _, s := range b.pipeline(handlers.Ingest{Year: 2024}) {
			is.Equal(s.State, runner.StateSucceeded)
		}
		fast := b.count(is, `select count(*) from trapeze.job_event where event = 'job.claimed' and fields->>'path' = 'fast'`)
		is.Equal(fast > 0, i == 1)
		totals[i], err = handlers.ReadTotals(t.Context(), pool, handlers.Options{}, 2024)
		is.NoErr(err)
		is.True(len(totals[i]) > 0)
	}
	is.Equal(totals[0], totals[1]) // equal to the last digit
}
