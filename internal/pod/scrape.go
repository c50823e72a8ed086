package pod

import (
	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// Measured calls f for each series of the pod's metrics, with the metric's index in [telemetry.Set.Metrics]. It first updates the gauges
// of current state, and works even if the database does not respond.
func (p *Pod) Measured(f func(at int, series telemetry.Series)) {
	p.collecting.Lock() // another collection must not run between Reset and Set
	defer p.collecting.Unlock()
	p.observe(p.Metrics.LaneSlots)
	m := p.Metrics
	m.RemoteWorkers.Set(float64(p.sessions().Connected()))
	m.LaneWaiting.Reset()
	m.LaneOldest.Reset()
	m.Pods.Reset()
	for _, b := range p.backlogs.read(func(ctx context.Context) ([]view.Backlog, error) { return view.Backlogs(ctx, p.Commands) }) {
		m.LaneWaiting.WithLabelValues(b.Lane).Set(float64(b.Waiting))
		m.LaneOldest.WithLabelValues(b.Lane).Set(b.OldestSeconds)
		m.Pods.WithLabelValues().Set(float64(b.Pods))
	}
	m.Set.Each(f)
}

const (
	// fleetFor is the time for which collectors share a reading of the fleet's state.
	fleetFor = 5 * time.Second
	// fleetWithin is the timeout for reading how many jobs are waiting in the fleet. After the timeout, the scrape continues without these
	// numbers.
	fleetWithin = time.Second
)

// backlogs holds the latest reading of the fleet's waiting jobs. It is refreshed only when metrics are collected.
type backlogs struct {
	mu     sync.Mutex
	at     time.Time
	latest []view.Backlog
}

// read returns a reading that is at most fleetFor old. If the database does not respond, the reading is empty, and read does not query it
// again until fleetFor has passed.
func (f *backlogs) read(ask func(context.Context) ([]view.Backlog, error)) []view.Backlog {
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

// observe sets the gauges of each lane's used slots and slot limit on this pod, including the pod's remote workers.
func (p *Pod) observe(gauge *telemetry.Vec[*telemetry.Gauge]) {
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
