package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/scheduler"
)

// maintainAfter is when a pod does its first round, at the earliest; at the latest after twice as long. A pod that has just
// started has other things to do, and pods that start together need not all do it.
const maintainAfter = 2 * time.Second

// maintain does this pod's share of the maintenance until ctx ends.
func (r *Runner) maintain(ctx context.Context) {
	if !wait.For(ctx, maintainAfter+rand.N(maintainAfter)) { // #nosec G404 -- jitter
		return
	}
	clock, err := scheduler.New(r.log)
	if err != nil {
		r.log.ErrorContext(ctx, "maintenance does not run", telemetry.Err, err)
		return
	}
	lead := &leader{r: r}
	lead.look(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { lead.keep(ctx) })
	defer keeping.Wait()
	for i := range r.chores(nil) {
		t := &turn{r: r, lead: lead}
		t.chore = r.chores(t.goOn)[i]
		if err := clock.Every(t.name, t.every, t.take); err != nil {
			r.log.ErrorContext(ctx, "maintenance is not complete", telemetry.Chore, t.name, telemetry.Err, err)
		}
	}
	clock.Run(ctx)
}

// Maintain does one round of the maintenance now: what a runner that is run does by itself, by the minute. It is for tools and
// tests that must not wait for that. It does what it can and returns the errors of the rest. Safe for concurrent use.
func (r *Runner) Maintain(ctx context.Context) error {
	var errs []error
	for _, c := range r.chores(func(ctx context.Context) error { return ctx.Err() }) {
		if _, err := c.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("maintain %s: %w", c.name, r.dbError(err)))
		}
	}
	return errors.Join(errs...)
}
