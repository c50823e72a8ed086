package pod

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// wakeUps collects wake-ups until the next notification is sent. It is safe for concurrent use, and its zero value is empty.
type wakeUps struct {
	mu    sync.Mutex
	all   bool                       // wake all pods
	jobs  map[store.Claimable]int    // numbers of jobs by lane and kind; the number in the key is 0
	lanes map[string]map[string]bool // lanes in which an engine's slots have changed, by its boot ID
	full  map[string]bool            // boot IDs of engines without a free slot

	sent  time.Time // when a caller last sent a notification itself
	timer *time.Timer
}

// add adds wake-ups for jobs, or a wake-up of all pods if there are none.
func (w *wakeUps) add(jobs []store.Claimable) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(jobs) == 0 {
		w.all = true
	}
	for _, one := range jobs {
		if w.jobs == nil {
			w.jobs = map[store.Claimable]int{}
		}
		w.jobs[store.Claimable{Lane: one.Lane, Kind: one.Kind}] += one.Jobs
	}
}

func (w *wakeUps) addLanes(boot string, lanes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lanes == nil {
		w.lanes = map[string]map[string]bool{}
	}
	if w.lanes[boot] == nil {
		w.lanes[boot] = map[string]bool{}
	}
	for _, name := range lanes {
		w.lanes[boot][name] = true
	}
}

func (w *wakeUps) addFull(boot string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full == nil {
		w.full = map[string]bool{}
	}
	w.full[boot] = true
}

// take returns the collected wake-ups and forgets them.
func (w *wakeUps) take() (all bool, jobs []store.Claimable, lanes map[string]map[string]bool, full []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, n := range w.jobs {
		jobs = append(jobs, store.Claimable{Lane: key.Lane, Kind: key.Kind, Jobs: n})
	}
	all, lanes, full = w.all, w.lanes, slices.Collect(maps.Keys(w.full))
	w.all, w.jobs, w.lanes, w.full = false, nil, nil, nil
	return all, jobs, lanes, full
}

// Reach returns how to wake the pod and its sessions, for a heartbeat of an engine with the given number of free slots.
func (p *Pod) Reach(free int) *store.Reach {
	r := &store.Reach{FreeSlots: free}
	if p.listening.Load() {
		r.Channel = p.channel
	}
	return r
}

// WakeOthers wakes the sessions of remote workers on this pod, and requests a wake-up of a few pods that can run the jobs, or of all pods if
// it gets none.
func (p *Pod) WakeOthers(jobs ...store.Claimable) {
	p.sessions().Each((*engine.Engine).WakeForPeers)
	p.engines.wake()
	if !p.NotificationsDisabled() {
		p.wakes.add(jobs)
		p.requestWakes()
	}
}

// WakeForLanes requests a wake-up of the pods to which a change of an engine's slots in limited lanes matters.
func (p *Pod) WakeForLanes(boot string, lanes []string) {
	p.sessions().Each((*engine.Engine).WakeForPeers)
	if !p.NotificationsDisabled() {
		p.wakes.addLanes(boot, lanes)
		p.requestWakes()
	}
}

// PassOn requests a wake-up of other pods with free slots, because an engine of this pod was woken and has none.
func (p *Pod) PassOn(boot string) {
	if !p.NotificationsDisabled() {
		p.wakes.addFull(boot)
		p.requestWakes()
	}
}

// requestWakes makes the pod send the collected wake-ups. A pod that is not running, for example because the program only submits jobs,
// sends them here, or after [engine.MinWakeInterval] if it has just sent some.
func (p *Pod) requestWakes() {
	if p.Lease.Registered() {
		p.peers.Set()
		return
	}
	w := &p.wakes
	w.mu.Lock()
	rest := engine.MinWakeInterval - time.Since(w.sent)
	if rest > 0 {
		if w.timer == nil {
			w.timer = time.AfterFunc(rest, p.sendDelayed)
		}
		w.mu.Unlock()
		return
	}
	w.sent = time.Now()
	w.mu.Unlock()
	p.sendNow()
}

// sendDelayed sends the wake-ups that a pod that is not running has delayed.
func (p *Pod) sendDelayed() {
	w := &p.wakes
	w.mu.Lock()
	delayed := w.timer != nil
	if delayed {
		w.timer.Stop()
		w.timer, w.sent = nil, time.Now()
	}
	w.mu.Unlock()
	if delayed {
		p.sendNow()
	}
}

func (p *Pod) sendNow() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = p.sendWakes(ctx) // best effort
}

// sendWakes sends the collected wake-ups.
func (p *Pod) sendWakes(ctx context.Context) error {
	all, jobs, lanes, full := p.wakes.take()
	if all {
		return p.Commands.Notify(ctx, p.Commands.Pool())
	}
	if len(jobs) > 0 {
		boot := ""
		if p.Lease.Registered() {
			boot = p.Boot()
		}
		if err := store.NotifyJobs(ctx, p.Commands, p.Commands.Pool(), boot, jobs); err != nil {
			return err
		}
	}
	for boot, names := range lanes {
		if err := store.NotifyLanes(ctx, p.Commands, boot, slices.Sorted(maps.Keys(names))); err != nil {
			return err
		}
	}
	if len(full) == 0 {
		return nil
	}
	err := store.PassOn(ctx, p.Commands, full, false)
	for _, boot := range full {
		if e := p.engineOf(boot); e != nil {
			e.Missed()
		}
	}
	return err
}

// engineOf returns the engine of the pod or of one of its sessions, or nil.
func (p *Pod) engineOf(boot string) *engine.Engine {
	if boot == p.Boot() {
		return p.Engine
	}
	return p.sessions().Engine(boot)
}

// notifyPeers sends the requested wake-ups. Each is sent in a separate transaction, because committing a notification takes a server-wide
// lock.
func (p *Pod) notifyPeers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			p.sendLastWakeUp(ctx)
			return
		case <-p.peers:
		}
		if err := p.sendWakes(ctx); err != nil && ctx.Err() == nil {
			p.Log.DebugContext(ctx, "could not wake peers", telemetry.Err, p.DBError(err))
		}
		if !wait.For(ctx, engine.MinWakeInterval) {
			p.sendLastWakeUp(ctx)
			return
		}
	}
}

// sendLastWakeUp sends wake-ups that were requested shortly before shutdown, for example for jobs that were handed back.
func (p *Pod) sendLastWakeUp(ctx context.Context) {
	if !p.peers.Clear() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = p.sendWakes(ctx) // best effort
}

// stopWakes keeps other pods from waking this one, and wakes two of them in case that it has just been woken.
func (p *Pod) stopWakes(ctx context.Context) {
	if p.NotificationsDisabled() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = store.PassOn(ctx, p.Commands, []string{p.Boot()}, true) // best effort
}
