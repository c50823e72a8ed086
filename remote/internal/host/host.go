// Package host serves remote workers on a pod. Each worker whose stream this pod serves has a [Session]: an engine whose handlers are
// proxies that send a job to the worker and wait for its report. Remote jobs are therefore claimed, fenced and finished like any other job.
//
// Heartbeats and reports can arrive on any pod. If another pod serves the stream, [Host] works from the tables. The package handles tokens,
// acknowledgements, claims that a worker brings along from another pod, and repeated reports. Package remote/server calls it for each
// request.
package host

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Host serves remote workers on a pod. It has a session for each worker whose stream the pod serves. It also handles heartbeats, reports
// and notes from workers whose streams are on other pods.
type Host struct {
	pod *pod.Pod

	mu   sync.Mutex
	byID map[string]*Session
	wg   sync.WaitGroup
	shut bool

	adoptions *adoptions
	measured  telemetry.KindLabels
}

// Of returns the host for a pod's remote workers. Each pod has exactly one host.
func Of(p *pod.Pod) *Host {
	return p.ServeWorkers(func() pod.WorkerSessions {
		registerCounts(p.Metrics)
		return &Host{pod: p, adoptions: newAdoptions(p.Store.Held)}
	}).(*Host)
}

// Times returns how long a remote worker's lease lasts and how often the worker sends heartbeats.
func (h *Host) Times() (lease, every time.Duration) {
	return h.pod.Opts.LeaseDuration, h.pod.Opts.HeartbeatInterval
}

// PodName returns the display name of the pod.
func (h *Host) PodName() string { return h.pod.Opts.Name }

// ran records the run time of a job whose kind only remote workers handle.
func (h *Host) ran(m *telemetry.Metrics, kind string, seconds float64) {
	m.RunSeconds.WithLabelValues(h.measured.Label(kind)).Observe(seconds)
}

func (h *Host) find(id string) *Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byID[id]
}

// add adds a session, unless the pod is stopping. It returns the previous session with the same worker ID, if there is one.
func (h *Host) add(g *Session) (before *Session, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shut {
		return nil, false
	}
	if h.byID == nil {
		h.byID = map[string]*Session{}
	}
	before = h.byID[g.opts.ID]
	h.byID[g.opts.ID] = g
	h.wg.Add(1)
	return before, true
}

func (h *Host) remove(g *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byID[g.opts.ID] == g {
		delete(h.byID, g.opts.ID)
	}
	h.wg.Done()
}

// marksFor returns the low-water marks that all workers with the same kinds share. Because the marks are shared, ineligible jobs are
// skipped once for all of these workers instead of once for each.
func (h *Host) marksFor(kinds []string) *slots.Marks {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.byID {
		if slices.Equal(g.engine.HandledKinds, kinds) {
			return g.engine.Marks
		}
	}
	return &slots.Marks{}
}

func (h *Host) list() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.byID))
}

// Each implements [pod.WorkerSessions].
func (h *Host) Each(do func(*engine.Engine)) {
	for _, g := range h.list() {
		do(g.engine)
	}
}

// Engine implements [pod.WorkerSessions].
func (h *Host) Engine(podID string) *engine.Engine {
	if g := h.find(podID); g != nil {
		return g.engine
	}
	return nil
}

// Leave implements [pod.WorkerSessions]. The workers keep running and reconnect to other pods.
func (h *Host) Leave() {
	h.mu.Lock()
	h.shut = true
	h.mu.Unlock()
	for _, g := range h.list() {
		g.finish(job.ErrShutdown)
	}
	h.wg.Wait()
}

// Options describe a remote worker.
type Options struct {
	// ID is a random UUID that identifies the worker's process.
	ID string
	// Name and Version are for display. Name defaults to the ID.
	Name, Version string
	// Owner is the principal that may act for the worker. Calls from other principals are rejected.
	Owner string
	// Kinds are the kinds that the worker handles, with their options.
	Kinds []engine.RemoteKind
	// Lane reports whether the worker receives jobs from the given lane. By default, it receives jobs from every lane.
	Lane func(name string) bool
	// Slots is the maximum number of jobs that the worker runs concurrently.
	Slots int
	// Running lists the claims that the worker holds when it reconnects.
	Running []Claim
	// AckWithin is the time after which a sent job that is missing from the worker's heartbeats is handed back. The default is two
	// heartbeats.
	AckWithin time.Duration
	// Send sends a job. It must not block on the network for long. If it returns an error, the stream ends.
	Send func(engine.Assignment) error
	// Nudge makes the worker send a heartbeat immediately, because one of its handlers is being cancelled. It must not block. If it is nil,
	// the worker learns about the cancellation from its next regular heartbeat.
	Nudge func()
}

func (o Options) withDefaults(h *Host) (Options, error) {
	var errs []error
	if !isWorker(o.ID) {
		errs = append(errs, fmt.Errorf("%w: worker id %q: want a random UUID in lower case", job.ErrInvalid, job.Storable(o.ID, 50)))
	}
	if o.Slots < 1 || o.Slots > maxSlots {
		errs = append(errs, fmt.Errorf("%w: %d slots, want 1 to %d", job.ErrInvalid, o.Slots, maxSlots))
	}
	if len(o.Kinds) == 0 || len(o.Kinds) > maxKinds {
		errs = append(errs, fmt.Errorf("%w: %d kinds, want 1 to %d", job.ErrInvalid, len(o.Kinds), maxKinds))
	}
	for _, k := range o.Kinds {
		errs = append(errs, job.ValidateKind(k.Name))
		if k.Timeout != nil && *k.Timeout < 0 || k.InactivityTimeout != nil && *k.InactivityTimeout < 0 || k.Backoff != nil && min(k.Backoff.Base, k.Backoff.Cap) < 0 || k.MaxAttempts < 0 || k.MaxCrashes < 0 {
			errs = append(errs, fmt.Errorf("%w: kind %q: negative policy", job.ErrInvalid, job.Storable(k.Name, 50)))
		}
	}
	if len(o.Running) > 2*maxSlots {
		errs = append(errs, fmt.Errorf("%w: %d running jobs", job.ErrTooLarge, len(o.Running)))
	}
	if o.Name = job.DisplayName(o.Name); o.Name == "" {
		o.Name = o.ID
	}
	o.Version = job.Storable(o.Version, 100)
	if o.AckWithin == 0 {
		o.AckWithin = 2 * h.pod.Opts.HeartbeatInterval
	}
	return o, errors.Join(errs...)
}

// isWorker reports whether text can be a worker's ID: a UUID in canonical form.
func isWorker(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.String() == id
}

const (
	maxSlots = 1000
	maxKinds = 500
)
