package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
)

// Commands for lanes, pods and the gate. Each is one transaction with its row in the audit and its event, and tells the pods, so
// that it is in force at once; where a notification is lost, with the next heartbeat. Running jobs are never touched by them.
// An error that is [job.ErrOutcomeUnknown] means that the connection was lost before the answer: asking again is safe, and tells.

// operated is the error of a command. Without one, this pod follows the command before the answer, without waiting for a notification:
// what is submitted here afterwards meets it.
func (a Admin) operated(ctx context.Context, err error) error {
	if err != nil {
		return a.pod.CommandError(err)
	}
	a.pod.Follow(ctx)
	return nil
}

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
			return done, fmt.Errorf("the lane is set, but not all jobs of its kinds have moved: %w", a.pod.DBError(err))
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

// DrainPod keeps the pods of a name, or the one of a boot id, from starting anything until [Admin.ResumePod]: they claim nothing,
// and their chains leave the next step to others. They go on otherwise, and are not ready. A process that comes back under the
// name is drained too. With a wait it waits until nothing runs there. Error: [job.ErrUnknownPod].
func (a Admin) DrainPod(ctx context.Context, pod string, wait time.Duration, actor string) (job.Quiet, error) {
	changed, boots, err := admin.DrainPod(ctx, a.pod.Commands, pod, true, named(actor))
	if err := a.operated(ctx, err); err != nil {
		return job.Quiet{}, err
	}
	return a.quiet(ctx, changed, wait, admin.Scope{Boots: boots})
}

// ResumePod lets pods start jobs again, and reports whether any was drained. Error: [job.ErrUnknownPod].
func (a Admin) ResumePod(ctx context.Context, pod, actor string) (bool, error) {
	changed, _, err := admin.DrainPod(ctx, a.pod.Commands, pod, false, named(actor))
	return changed, a.operated(ctx, err)
}

// Pause closes the gate: nothing starts anywhere, also after restarts, until [Admin.Unpause]. It reports whether that is news.
func (a Admin) Pause(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Pause(ctx, a.pod.Commands, true, named(actor))
	return changed, a.operated(ctx, err)
}

// Unpause opens the gate, and reports whether it was paused. One that is frozen stays closed.
func (a Admin) Unpause(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Pause(ctx, a.pod.Commands, false, named(actor))
	return changed, a.operated(ctx, err)
}

// Freeze closes the gate for maintenance until [Admin.Thaw]. With a wait it waits until nothing runs anywhere.
func (a Admin) Freeze(ctx context.Context, wait time.Duration, actor string) (job.Quiet, error) {
	changed, err := admin.Freeze(ctx, a.pod.Commands, true, named(actor))
	if err := a.operated(ctx, err); err != nil {
		return job.Quiet{}, err
	}
	return a.quiet(ctx, changed, wait, admin.Scope{})
}

// Thaw ends a freeze, and reports whether there was one. Lanes and pods that were drained stay drained, a paused gate stays closed.
func (a Admin) Thaw(ctx context.Context, actor string) (bool, error) {
	changed, err := admin.Freeze(ctx, a.pod.Commands, false, named(actor))
	return changed, a.operated(ctx, err)
}

// Status reads how the gate and the lanes are, which pods there are, and what is in their slots, all of one moment.
func (a Admin) Status(ctx context.Context) (job.Fleet, error) {
	now, err := view.ReadStatus(ctx, a.pod.Commands)
	return now, a.pod.DBError(err)
}
