package maintenance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/upkeep"
)

// strayFor is the maximum time for which a pipeline is kept after its last job was removed by something other than this pod's retention,
// such as an operator or a former leader.
const strayFor = 24 * time.Hour

// pruned tracks whether pipelines may have lost their last jobs since the last complete read of the pipelines. A complete read of tens of
// millions of pipelines takes minutes, and finds nothing unless retention has removed jobs.
type pruned struct {
	batches atomic.Int64              // number of retention runs that removed jobs
	seen    atomic.Int64              // value of batches when the last complete read started
	read    atomic.Pointer[time.Time] // when that read started; nil if never
}

// prunePipelines removes pipelines without jobs, if there may be any. After an interruption, the next run starts over.
func (m *Maintenance) prunePipelines(ctx context.Context, pace upkeep.Pace) (int, error) {
	p, now := &m.pruned, time.Now()
	batches, read := p.batches.Load(), p.read.Load()
	if read != nil && batches == p.seen.Load() && now.Sub(*read) < strayFor {
		return 0, nil
	}
	n, err := upkeep.PrunePipelines(ctx, m.o.Store, keepPipelines, pace)
	if err == nil {
		p.seen.Store(batches)
		p.read.Store(&now)
	}
	return n, err
}
