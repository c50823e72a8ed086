package runner

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// Mistakes of package mutant that take more than a line. Without the build tag mutants nothing calls them, and no program
// contains them.

// chainTwice submits the next step of a finish whose reply was lost once more: it may not have gone in with it.
func (r *Runner) chainTwice(ctx context.Context, next *store.NewJob) {
	if next == nil {
		return
	}
	ids, err := r.front.NewIDs(ctx, 1)
	if err != nil {
		return
	}
	again := *next
	again.ID, again.Starts = ids[0], false
	_, _ = r.front.Enqueue(ctx, r.Boot(), []store.NewJob{again})
	r.wake()
}

// chainLate submits the next step of a claim whose end has been committed. An error is logged, as errors are.
func (r *Runner) chainLate(one *run, next store.NewJob) {
	next.Starts = false
	if _, err := r.front.Enqueue(context.WithoutCancel(one.ctx), one.lease.Pod, []store.NewJob{next}); err != nil {
		r.log.ErrorContext(one.ctx, "next step could not be submitted", append(one.attrs(), telemetry.Err, err)...)
	}
}

// launchEarly starts the next step of a claim whose end is on its way, on a slot of its own, and reports whether there was
// one.
func (r *Runner) launchEarly(one *run, next store.NewJob) bool {
	if !next.Starts || !r.lanes.Reserve(next.Lane) {
		return false
	}
	if !r.launchBorn(one.lease.Pod, next) {
		r.lanes.Release(next.Lane, 1)
		return false
	}
	return true
}

// giveBackAll gives back whatever a worker runs whose stream has ended.
func (g *Guest) giveBackAll() {
	for _, p := range g.proxiesThat(func(claimKey, *proxy) bool { return true }) {
		p.giveBack("the stream of its worker ended")
	}
}
