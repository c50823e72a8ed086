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
		if k.Timeout != nil && *k.Timeout < 0 || k.StaleAfter != nil && *k.StaleAfter < 0 || k.Backoff != nil && min(k.Backoff.Base, k.Backoff.Cap) < 0 || k.MaxAttempts < 0 || k.MaxCrashes < 0 {
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

// isWorker reports whether text can be a worker's ID: a UUID in canonical form.
func isWorker(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.String() == id
}

const (
	maxSlots = 1000
	maxKinds = 500
)
