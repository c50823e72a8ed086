package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// SetLane creates a lane, or changes what c mentions of it. Waiting jobs of a kind that gets another default lane move there, in
// batches after the change, each with the event job.moved; an error on the way leaves some where they were, and the same change
// again moves none: name the lane by [Admin.SetLane] of the one they are in. A dry run tells what would change.
// Errors: [job.ErrInvalidSetting], [job.ErrUnknownLane] when it should exist.
func (a Admin) SetLane(ctx context.Context, name string, c job.LaneChange, actor string) (job.LaneChanged, error) {
	done, moves, err := admin.SetLane(ctx, a.pod.Commands, name, c, named(actor))
	if err := a.operated(ctx, err); err != nil || c.DryRun {
		return done, err
	}
	done.Moved = 0
	for _, m := range moves {
		n, err := a.move(ctx, m, actor)
		if done.Moved += n; err != nil {
			return done, fmt.Errorf("lane saved, but not all jobs of its kinds were moved: %w", a.pod.DBError(err))
		}
	}
	return done, nil
}

// moveTries is how often a move looks again for jobs whose rows somebody held.
const moveTries = 5

// move moves waiting jobs to another lane, and wakes the pods for them.
func (a Admin) move(ctx context.Context, m admin.Moving, actor string) (total int, err error) {
	for try, backoff := 0, wait.NewBackoff(); try < moveTries; try++ {
		moved, passed, err := admin.Move(ctx, a.pod.Commands, m, named(actor))
		if total += moved; moved > 0 {
			a.pod.Wake()
			a.pod.WakePeers()
		}
		if err != nil || passed == 0 || !backoff.Wait(ctx) {
			return total, err
		}
	}
	return total, nil
}

// DeleteLane deletes a lane. One that has jobs is not, unless moveTo names another: then what waits moves there, with the kinds
// whose default lane it was, and what runs goes on to its end. The lane default stays.
// Errors: [job.ErrLaneNotEmpty], [job.ErrUnknownLane] for either lane, [job.ErrInvalidSetting].
func (a Admin) DeleteLane(ctx context.Context, name, moveTo, actor string, dryRun bool) (job.LaneChanged, error) {
	// Tried first: whoever names a lane that does not exist must not move anything.
	done, err := admin.DeleteLane(ctx, a.pod.Commands, name, moveTo, named(actor), moveTo != "" || dryRun)
	if err != nil || dryRun || moveTo == "" {
		return done, a.operated(ctx, err)
	}
	moved := 0
	for try, backoff := 0, wait.NewBackoff(); ; try++ {
		n, err := a.move(ctx, admin.Moving{From: name, To: moveTo}, actor)
		moved += n
		if err == nil {
			done, err = admin.DeleteLane(ctx, a.pod.Commands, name, moveTo, named(actor), false)
		}
		if errors.Is(err, job.ErrLaneNotEmpty) && try < moveTries && backoff.Wait(ctx) {
			continue // somebody holds the row of a job, or submits
		}
		done.Moved += moved
		return done, a.operated(ctx, err)
	}
}

// DrainLane closes a lane until [Admin.ResumeLane]: what runs goes on to its end, nothing new starts, next steps of chains
// included. With a wait it waits until nothing of the lane runs. Error: [job.ErrUnknownLane].
func (a Admin) DrainLane(ctx context.Context, lane string, wait time.Duration, actor string) (job.Quiet, error) {
	changed, err := admin.DrainLane(ctx, a.pod.Commands, lane, true, named(actor))
	if err := a.operated(ctx, err); err != nil {
		return job.Quiet{}, err
	}
	return a.quiet(ctx, changed, wait, admin.Scope{Lane: lane})
}

// ResumeLane opens a lane again, and reports whether it was drained. Error: [job.ErrUnknownLane].
func (a Admin) ResumeLane(ctx context.Context, lane, actor string) (bool, error) {
	changed, err := admin.DrainLane(ctx, a.pod.Commands, lane, false, named(actor))
	return changed, a.operated(ctx, err)
}
