package pod

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/instrument"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// Measured calls f for each series of the pod's metrics, with the metric's index in [instrument.Set.Metrics]. Gauges of
// a current state are read now. It does not fail when the database does not answer.
func (p *Pod) Measured(f func(at int, one instrument.Series)) {
	p.collecting.Lock() // two collections must not meet between Reset and Set
	defer p.collecting.Unlock()
	p.observe(p.Metrics.LaneSlots)
	m := p.Metrics
	m.RemoteWorkers.Set(float64(p.sessions().Connected()))
	m.LaneWaiting.Reset()
	m.LaneOldest.Reset()
	m.Pods.Reset()
	for _, b := range p.fleet.read(func(ctx context.Context) ([]view.Backlog, error) { return view.Fleet(ctx, p.Commands) }) {
		m.LaneWaiting.WithLabelValues(b.Lane).Set(float64(b.Waiting))
		m.LaneOldest.WithLabelValues(b.Lane).Set(b.OldestSeconds)
		m.Pods.WithLabelValues().Set(float64(b.Pods))
	}
	m.Set.Each(f)
}

const (
	// fleetFor is how long one reading of the fleet's state serves all that collect.
	fleetFor = 5 * time.Second
	// fleetWithin bounds a reading: a scrape waits no longer, and goes on without.
	fleetWithin = time.Second
)

// fleet is the latest reading of what waits in the whole fleet. Nobody reads unless somebody collects.
type fleet struct {
	mu     sync.Mutex
	at     time.Time
	latest []view.Backlog
}

// read returns a reading that is at most fleetFor old: empty when the database did not answer, which is not asked again before
// that time either.
func (f *fleet) read(ask func(context.Context) ([]view.Backlog, error)) []view.Backlog {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.at.IsZero() && time.Since(f.at) < fleetFor {
		return f.latest
	}
	ctx, cancel := context.WithTimeout(context.Background(), fleetWithin)
	defer cancel()
	f.latest, _ = ask(ctx)
	f.at = time.Now()
	return f.latest
}

// observe sets the slots of each lane that are used here, and their limit here: in this pod and in the remote workers that it serves.
func (p *Pod) observe(gauge *instrument.Vec[*instrument.Gauge]) {
	sum := map[string]slots.Use{}
	p.Lanes.AddUse(sum)
	p.sessions().Each(func(e *engine.Engine) { e.Lanes.AddUse(sum) })
	most := p.Lanes.Shared()
	gauge.Reset()
	for name, use := range sum {
		if all, bounded := most[name]; bounded {
			use.Limit = min(use.Limit, all)
		}
		gauge.WithLabelValues(name, "used").Set(float64(use.Used))
		gauge.WithLabelValues(name, "limit").Set(float64(use.Limit))
	}
}
