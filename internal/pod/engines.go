package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
)

// laneEngines holds the engines other than PostgreSQL that the program serves. They run the jobs of the lanes that name them, whereas the
// embedded [engine.Engine] runs handlers.
type laneEngines struct {
	mu    sync.Mutex
	list  []job.LaneEngine
	woken []func() // called after notifications
	turns fleet.Turns
	serve []func(context.Context)
}

func (e *laneEngines) all() []job.LaneEngine {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.list[:len(e.list):len(e.list)]
}

// names returns the engines' names, or nil if there are none.
func (e *laneEngines) names() (names []string) {
	for _, engine := range e.all() {
		names = append(names, engine.Name())
	}
	return names
}

// UseEngine registers an engine. A pod lists its engines in its row when it starts.
func (p *Pod) UseEngine(e job.LaneEngine) error {
	name := e.Name()
	if name == job.EnginePostgreSQL || job.ValidateEngineName(name) != nil {
		return fmt.Errorf("%w: engine %q: want 1 to 100 letters, digits, dots, underscores or minus signs, and not postgres", job.ErrInvalidSetting, name)
	}
	p.laneEngines.mu.Lock()
	defer p.laneEngines.mu.Unlock()
	for _, engine := range p.laneEngines.list {
		if engine.Name() == name {
			return fmt.Errorf("%w: engine %q is registered twice", job.ErrInvalidSetting, name)
		}
	}
	p.laneEngines.list = append(p.laneEngines.list, e)
	return nil
}

// Outbox returns an engine's outbox. Jobs that end through the outbox are reported like those of the pod's own handlers.
func (p *Pod) Outbox(engine string) *outbox.Outbox {
	return outbox.New(p.Commands, outbox.Options{Engine: engine, MaxCrashes: p.opts.MaxCrashes, Admitted: p.Admitted,
		Ended: func(e job.End) { p.Ends.Report(nil, e) }})
}

// OnWake makes the pod call do, at a limited rate, after notifications that jobs may be due. The function must not block.
func (p *Pod) OnWake(do func()) {
	p.laneEngines.mu.Lock()
	defer p.laneEngines.mu.Unlock()
	p.laneEngines.woken = append(p.laneEngines.woken, do)
}

// OnRun makes Run call serve, which serves an engine until ctx ends. The pod does not leave the fleet until serve has returned.
func (p *Pod) OnRun(serve func(ctx context.Context)) {
	p.laneEngines.mu.Lock()
	defer p.laneEngines.mu.Unlock()
	p.laneEngines.serve = append(p.laneEngines.serve, serve)
}

// run calls the functions that serve engines, and waits until all of them have returned.
func (e *laneEngines) run(ctx context.Context) {
	e.mu.Lock()
	serve := e.serve
	e.mu.Unlock()
	var served sync.WaitGroup
	for _, one := range serve {
		served.Go(func() { one(ctx) })
	}
	served.Wait()
}

// hear calls the functions registered with OnWake, at a limited rate.
func (e *laneEngines) hear(u fleet.Up) {
	if e.listen() {
		e.turns.Hear(u, true, func(fleet.Claiming) { e.wake() })
	}
}

// listen reports whether functions were registered with OnWake.
func (e *laneEngines) listen() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.woken) > 0
}

// wake calls the functions registered with OnWake.
func (e *laneEngines) wake() {
	e.mu.Lock()
	woken := e.woken
	e.mu.Unlock()
	for _, do := range woken {
		do()
	}
}

// useFor and checkFor limit how long an unresponsive engine can delay a page and doctor, respectively.
const (
	useFor   = 2 * time.Second
	checkFor = 10 * time.Second
)

// AddEngineUse adds to each lane its engine's report or, if the engine does not respond, the error.
func (p *Pod) AddEngineUse(ctx context.Context, lanes []job.LaneUse) {
	ctx, cancel := context.WithTimeout(ctx, useFor)
	defer cancel()
	for _, e := range p.laneEngines.all() {
		var names []string
		for _, l := range lanes {
			if l.Engine == e.Name() {
				names = append(names, l.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		use, err := e.Use(ctx, names)
		for i := range lanes {
			if l := &lanes[i]; l.Engine == e.Name() {
				engineUse := use[l.Name]
				if l.EngineUse = &engineUse; err != nil {
					engineUse.Error = job.Storable(err.Error(), 200)
				}
			}
		}
	}
}

// NameEngine completes a job that another engine is running or has ended. It adds the engine's name, the URL of the run's page and, for a
// running job, any progress that the engine tracks. If the engine does not respond, the progress is left out.
func (p *Pod) NameEngine(ctx context.Context, j *job.JobRow) {
	if j.Pod == nil || !outbox.IsEngine(*j.Pod) {
		return
	}
	for _, e := range p.laneEngines.all() {
		if outbox.PodID(e.Name()) == *j.Pod {
			j.Engine, j.EngineURL = e.Name(), e.JobURL(*j)
			if keeps, ok := e.(job.EngineProgress); ok && j.State == job.Running {
				ctx, cancel := context.WithTimeout(ctx, useFor)
				defer cancel()
				if now, err := keeps.Progress(ctx, *j); err == nil && now != nil {
					j.Progress = now
				}
			}
			return
		}
	}
	j.Engine, _ = outbox.NameOf(ctx, p.Commands, *j.Pod) // without the name, the id is shown
}

// checkEngines adds the findings from the engines' own checks.
func (p *Pod) checkEngines(ctx context.Context, findings []doctor.Finding) []doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, checkFor)
	defer cancel()
	for _, e := range p.laneEngines.all() {
		for _, f := range e.Check(ctx) {
			findings = append(findings, doctor.Finding{Check: e.Name(), Status: doctor.Health(f.Status), Says: f.Says, Do: f.Do})
		}
	}
	return findings
}
