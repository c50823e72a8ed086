package runner

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/job"
)

// laneFor finds the lane of a submission, and checks the lanes that its later steps name.
func (r *engine) laneFor(ctx context.Context, w *submission) (string, error) {
	for _, s := range w.planned {
		if s.Lane == "" {
			continue
		}
		if _, err := r.laneOf(ctx, s.Kind, s.Lane); err != nil {
			return "", err
		}
	}
	return r.laneOf(ctx, w.kind, w.lane)
}

// laneOf finds the lane of a submission: the one named, which must exist, or its kind's.
func (r *engine) laneOf(ctx context.Context, kind, named string) (string, error) {
	return r.laneAsking(ctx, r.front.LaneFor, kind, named)
}

// laneAsking is laneOf that asks the database in a way of the caller's, should the latest heartbeat not have told.
func (r *engine) laneAsking(ctx context.Context, ask func(ctx context.Context, kind, named, other string) (string, bool, error), kind, named string) (string, error) {
	if lane, known, exists := r.lanes.lookup(kind, named); known {
		if !exists {
			return "", fmt.Errorf("submit %s to lane %q: %w", kind, named, job.ErrUnknownLane)
		}
		return lane, nil
	}
	lane, exists, err := ask(ctx, kind, named, job.DefaultLane)
	if err != nil {
		return "", r.dbError(err)
	}
	if !exists {
		return "", fmt.Errorf("submit %s to lane %q: %w", kind, named, job.ErrUnknownLane)
	}
	if named != "" {
		lane = named
	}
	return lane, nil
}

// lookup answers from the latest heartbeat. A lane that it did not know yet is not known to be missing.
func (l *lanes) lookup(kind, named string) (lane string, known, exists bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.known:
		return "", false, false
	case named != "":
		return named, l.byName[named] != nil, true
	case l.kinds[kind] != "":
		return l.kinds[kind], true, true
	}
	return job.DefaultLane, true, true
}

// laneOfStep finds the lane of a next step: the one named, its kind's, or its parent's.
func (l *lanes) laneOfStep(kind, named, parents string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case named != "":
		return named
	case l.kinds[kind] != "":
		return l.kinds[kind]
	}
	return parents
}
