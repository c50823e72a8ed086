package maintenance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/upkeep"
)

// strayFor is the longest time for which a pipeline is kept after its last job was removed by anything other than this pod's retention:
// by an operator, or by a former leader.
const strayFor = 24 * time.Hour

// pruned tracks whether pipelines may have lost their last jobs since all were last read. Reading all takes minutes for tens of millions,
// and finds nothing while retention has removed nothing.
type pruned struct {
	batches atomic.Int64 // runs of retention that removed jobs
	seen    atomic.Int64 // the value of batches when the last complete read began
	read    atomic.Int64 // when that was, in Unix nanoseconds; 0: never
}

// prunePipelines removes pipelines without a job, if there may be any. If it is interrupted, the next run repeats it.
func (m *Maintenance) prunePipelines(ctx context.Context, pace upkeep.Pace) (int, error) {
	p, now := &m.pruned, time.Now()
	batches, read := p.batches.Load(), p.read.Load()
	if read != 0 && batches == p.seen.Load() && now.Sub(time.Unix(0, read)) < strayFor {
		return 0, nil
	}
	n, err := upkeep.PrunePipelines(ctx, m.o.Store, keepPipelines, pace)
	if err == nil {
		p.seen.Store(batches)
		p.read.Store(now.UnixNano())
	}
	return n, err
}
