package engine

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// laneFor returns the lane of a submission, and checks that the lanes of its next steps exist.
func (sub *submitter) laneFor(ctx context.Context, w *work.Submission) (string, error) {
	for _, s := range w.Planned {
		if s.Lane == "" {
			continue
		}
		if _, err := sub.laneOf(ctx, s.Kind, s.Lane); err != nil {
			return "", err
		}
	}
	return sub.laneOf(ctx, w.Kind, w.Lane)
}

// laneOf returns the lane of a submission. That is the named lane, which must exist, or the lane of its kind if no lane is named.
func (sub *submitter) laneOf(ctx context.Context, kind, named string) (string, error) {
	return sub.LaneAsking(ctx, func(ctx context.Context, kind string, name string, other string) (lane string, exists bool, err error) {
		return view.LaneFor(ctx, sub.Commands, kind, name, other)
	}, kind, named)
}

// LaneAsking is like laneOf, but calls ask to read the database if the latest heartbeat did not report the lane.
func (sub *submitter) LaneAsking(ctx context.Context, ask func(ctx context.Context, kind, named, other string) (string, bool, error), kind, named string) (string, error) {
	if lane, known, exists := sub.Lanes.Lookup(kind, named); known {
		if !exists {
			return "", fmt.Errorf("%w: submit %s to lane %q", job.ErrUnknownLane, kind, named)
		}
		return lane, nil
	}
	lane, exists, err := ask(ctx, kind, named, job.DefaultLane)
	if err != nil {
		return "", sub.DBError(err)
	}
	if !exists {
		return "", fmt.Errorf("%w: submit %s to lane %q", job.ErrUnknownLane, kind, named)
	}
	if named != "" {
		lane = named
	}
	return lane, nil
}
