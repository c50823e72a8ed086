package engine

import (
	"github.com/trapeze-run/trapeze/internal/work"

	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// laneFor finds the lane of a submission, and checks the lanes that its later steps name.
func (r *Engine) laneFor(ctx context.Context, w *work.Submission) (string, error) {
	for _, s := range w.Planned {
		if s.Lane == "" {
			continue
		}
		if _, err := r.laneOf(ctx, s.Kind, s.Lane); err != nil {
			return "", err
		}
	}
	return r.laneOf(ctx, w.Kind, w.Lane)
}

// laneOf finds the lane of a submission: the one named, which must exist, or its kind's.
func (r *Engine) laneOf(ctx context.Context, kind, named string) (string, error) {
	return r.LaneAsking(ctx, func(ctx context.Context, kind string, name string, other string) (lane string, exists bool, err error) {
		return view.LaneFor(ctx, r.Commands, kind, name, other)
	}, kind, named)
}

// laneAsking is laneOf that asks the database in a way of the caller's, should the latest heartbeat not have told.
func (r *Engine) LaneAsking(ctx context.Context, ask func(ctx context.Context, kind, named, other string) (string, bool, error), kind, named string) (string, error) {
	if lane, known, exists := r.Lanes.Lookup(kind, named); known {
		if !exists {
			return "", fmt.Errorf("submit %s to lane %q: %w", kind, named, job.ErrUnknownLane)
		}
		return lane, nil
	}
	lane, exists, err := ask(ctx, kind, named, job.DefaultLane)
	if err != nil {
		return "", r.DBError(err)
	}
	if !exists {
		return "", fmt.Errorf("submit %s to lane %q: %w", kind, named, job.ErrUnknownLane)
	}
	if named != "" {
		lane = named
	}
	return lane, nil
}
