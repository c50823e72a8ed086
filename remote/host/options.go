package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/job"
)

// Options describe a remote worker.
type Options struct {
	// ID is a random UUID of the worker's process.
	ID string
	// Name and Version are for people. Default name: the id.
	Name, Version string
	// Owner is the principal that speaks for it; nobody else may.
	Owner string
	// Kinds are what it runs, and what holds for them.
	Kinds []engine.RemoteKind
	// Lane says from which lanes it is given jobs. Default: all.
	Lane func(name string) bool
	// Slots is how many jobs it runs at once.
	Slots int
	// Running are the claims that it says it has, when it comes back.
	Running []Claim
	// AckWithin is for how long a job that was sent may go unlisted by the worker's heartbeats before it is given back.
	// Default: two heartbeats.
	AckWithin time.Duration
	// Send sends a job. It must not wait for the network for long; its error ends the stream.
	Send func(engine.Assignment) error
	// Nudge has the worker send a heartbeat at once, because a handler of its is to end. It must not wait. Default: nothing, then
	// the worker learns it with its next heartbeat.
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
		if k.Timeout != nil && *k.Timeout < 0 || k.StaleAfter != nil && *k.StaleAfter < 0 || k.Backoff.Base < 0 || k.Backoff.Cap < 0 || k.MaxAttempts < 0 || k.MaxCrashes < 0 {
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
		o.AckWithin = 2 * h.pod.Opts.HeartbeatEvery
	}
	return o, errors.Join(errs...)
}

// isWorker reports whether an id may be a worker's: it is written in one way only.
func isWorker(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.String() == id
}

const (
	maxSlots = 1000
	maxKinds = 500
)
