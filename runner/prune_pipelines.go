package runner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// strayFor is how long a pipeline may be kept after its last job went other than by this pod's retention: deleted by somebody, or
// forgotten by a pod that led before.
const strayFor = 24 * time.Hour

// emptied knows whether pipelines may have lost their last jobs since all were last looked at. Looking at all of them takes minutes for
// tens of millions, and finds nothing as long as retention has taken nothing.
type emptied struct {
	forgotten atomic.Int64 // rounds of retention that took jobs
	seen      atomic.Int64 // of these, when the last look that came to its end began
	looked    atomic.Int64 // when that was, in Unix nanoseconds; 0: never
}

// prunePipelines forgets pipelines of which no job is kept, if there may be any. A look that is interrupted is for the next round.
func (r *Runner) prunePipelines(ctx context.Context, goOn store.Pace) (int, error) {
	e, now := &r.emptied, time.Now()
	forgotten, looked := e.forgotten.Load(), e.looked.Load()
	if looked != 0 && forgotten == e.seen.Load() && now.Sub(time.Unix(0, looked)) < strayFor {
		return 0, nil
	}
	n, err := r.front.PrunePipelines(ctx, keepPipelines, goOn)
	if err == nil {
		e.seen.Store(forgotten)
		e.looked.Store(now.UnixNano())
	}
	return n, err
}
