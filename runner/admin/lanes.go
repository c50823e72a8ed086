package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// SetLane creates a lane, or changes the settings that c contains. If a kind's default lane changes, the kind's waiting jobs are then moved
// there in batches, each with a job.moved event. After an error, or if their rows stay locked, some jobs may remain in the old lane.
// Repeating the change does not move them: assign the kind back to the old lane first. A dry run reports the result without making the
// change. SetLane returns [job.ErrInvalidSetting] if a setting is invalid, or [job.ErrUnknownLane] if c requires a lane that does not
// exist.
func (a Admin) SetLane(ctx context.Context, name string, c job.LaneChange) (job.LaneChanged, error) {
	done, moves, err := statements.SetLane(ctx, a.pod.Commands, name, c, a.actor)
	if err := a.finishCommand(ctx, err); err != nil || c.DryRun {
		return done, err
	}
	done.Moved = 0
	for _, m := range moves {
		n, err := a.move(ctx, m)
		if done.Moved += n; err != nil {
			return done, fmt.Errorf("lane saved, but not all jobs of its kinds were moved: %w", a.pod.DBError(err))
		}
	}
	return done, nil
}

// moveTries is the maximum number of attempts to move jobs whose rows are locked.
const moveTries = 5

// move moves waiting jobs to another lane and wakes the pods to run them.
func (a Admin) move(ctx context.Context, m statements.Moving) (total int, err error) {
	for try, backoff := 0, routine.NewBackoff(); try < moveTries; try++ {
		moved, skipped, err := statements.Move(ctx, a.pod.Commands, m, a.actor)
		if total += moved; moved > 0 {
			a.pod.WakeAll()
		}
		if err != nil || skipped == 0 || !backoff.Wait(ctx) {
			return total, err
		}
	}
	return total, nil
}

// DeleteLane deletes a lane. A lane that contains jobs is deleted only if moveTo names another lane. Its waiting jobs, and the kinds that
// use it by default, then move there; running jobs continue. DeleteLane returns [job.ErrLaneNotEmpty] if the lane has jobs and moveTo is
// empty, [job.ErrUnknownLane] if either lane does not exist, and [job.ErrInvalidSetting] if both lanes are the same or the lane is the one
// named default, which cannot be deleted.
func (a Admin) DeleteLane(ctx context.Context, name, moveTo string, dryRun bool) (job.LaneChanged, error) {
	// The dry run comes first, so that a command that names an unknown lane moves no jobs.
	done, err := statements.DeleteLane(ctx, a.pod.Commands, name, moveTo, a.actor, moveTo != "" || dryRun)
	if err != nil || dryRun || moveTo == "" {
		return done, a.finishCommand(ctx, err)
	}
	moved := 0
	for try, backoff := 0, routine.NewBackoff(); ; try++ {
		n, err := a.move(ctx, statements.Moving{From: name, To: moveTo})
		moved += n
		if err == nil {
			done, err = statements.DeleteLane(ctx, a.pod.Commands, name, moveTo, a.actor, false)
		}
		if errors.Is(err, job.ErrLaneNotEmpty) && try < moveTries && backoff.Wait(ctx) {
			continue // a job's row was locked, or a job was submitted concurrently
		}
		a.pod.WakeAll() // for the jobs that the deletion itself has moved
		done.Moved += moved
		return done, a.finishCommand(ctx, err)
	}
}

// ContinueLaneMove continues a lane's move to another engine, which [Admin.SetLane] started. If wait is positive, ContinueLaneMove blocks until the lane has
// moved, for at most wait. Even without this call, maintenance continues the move within a minute. It returns [job.ErrUnknownLane] if there
// is no such lane.
func (a Admin) ContinueLaneMove(ctx context.Context, lane string, wait time.Duration) (m job.LaneMove, err error) {
	m.TimedOut, err = a.pod.PollFleet(ctx, wait, func() (done, unheard bool, err error) {
		m, err = statements.ContinueLaneMove(ctx, a.pod.Commands, lane, a.actor)
		return m.Next == "", m.Pods > 0, a.pod.CommandError(err)
	})
	if err != nil || m.TimedOut {
		return m, err
	}
	return m, a.finishCommand(ctx, nil)
}

// DrainLane drains a lane until [Admin.UndrainLane]: running jobs continue, but no job starts, not even a chain's next step. If wait is
// positive, DrainLane blocks until none of the lane's jobs is running, for at most wait. It returns [job.ErrUnknownLane] if there is no
// such lane.
func (a Admin) DrainLane(ctx context.Context, lane string, wait time.Duration) (job.DrainResult, error) {
	changed, err := statements.DrainLane(ctx, a.pod.Commands, lane, true, a.actor)
	return a.finishDrain(ctx, changed, wait, statements.Scope{Lane: lane}, err)
}

// UndrainLane reopens a drained lane and reports whether it was drained. It returns [job.ErrUnknownLane] if there is no such lane.
func (a Admin) UndrainLane(ctx context.Context, lane string) (bool, error) {
	changed, err := statements.DrainLane(ctx, a.pod.Commands, lane, false, a.actor)
	return changed, a.finishCommand(ctx, err)
}

// Status returns the queue state, the lanes, the pods and the jobs in their slots, all from one snapshot.
func (a Admin) Status(ctx context.Context) (job.Fleet, error) {
	now, err := view.ReadStatus(ctx, a.pod.Commands)
	return now, a.pod.DBError(err)
}

// DrainPod drains all pods with the given name, or the pod with the given pod id, until [Admin.UndrainPod]. Drained pods start no jobs and
// leave their chains' next steps to other pods; running jobs continue. Drained pods report that they are not ready. A process that restarts
// under the same name stays drained. If wait is positive, DrainPod blocks until these pods run no jobs, for at most wait. It returns
// [job.ErrUnknownPod] if there is no such pod.
func (a Admin) DrainPod(ctx context.Context, pod string, wait time.Duration) (job.DrainResult, error) {
	changed, podIDs, err := statements.DrainPod(ctx, a.pod.Commands, pod, true, a.actor)
	return a.finishDrain(ctx, changed, wait, statements.Scope{PodIDs: podIDs}, err)
}

// UndrainPod lets drained pods start jobs again and reports whether any was drained. It returns [job.ErrUnknownPod] if there is no such pod.
func (a Admin) UndrainPod(ctx context.Context, pod string) (bool, error) {
	changed, _, err := statements.DrainPod(ctx, a.pod.Commands, pod, false, a.actor)
	return changed, a.finishCommand(ctx, err)
}

// Pause pauses the queue: until [Admin.Resume], no job starts on any pod, even after a restart. It reports whether the queue was open
// before.
func (a Admin) Pause(ctx context.Context) (bool, error) {
	changed, err := statements.Pause(ctx, a.pod.Commands, true, a.actor)
	return changed, a.finishCommand(ctx, err)
}

// Resume resumes the queue and reports whether it was paused. A frozen queue stays frozen.
func (a Admin) Resume(ctx context.Context) (bool, error) {
	changed, err := statements.Pause(ctx, a.pod.Commands, false, a.actor)
	return changed, a.finishCommand(ctx, err)
}

// Freeze freezes the queue for maintenance until [Admin.Unfreeze]. If wait is positive, Freeze blocks until no job is running, for at most
// wait.
func (a Admin) Freeze(ctx context.Context, wait time.Duration) (job.DrainResult, error) {
	changed, err := statements.Freeze(ctx, a.pod.Commands, true, a.actor)
	return a.finishDrain(ctx, changed, wait, statements.Scope{}, err)
}

// Unfreeze ends a freeze and reports whether the queue was frozen. Drained lanes and pods stay drained, and a paused queue stays paused.
func (a Admin) Unfreeze(ctx context.Context) (bool, error) {
	changed, err := statements.Freeze(ctx, a.pod.Commands, false, a.actor)
	return changed, a.finishCommand(ctx, err)
}
