package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Status is everything at one moment: how the gate and the lanes are, which pods there are, and what is in their slots.
type Status struct {
	Gate    job.Gate   `json:"gate"`
	Lanes   []LaneUse  `json:"lanes"`
	Pods    []job.Pod  `json:"pods"`
	Running []job.Slot `json:"running"`
}

const (
	gateSQL = `select paused, frozen from trapeze.gate`
	// slotsInUseSQL lists what runs, by pod and in the order in which it was claimed. Plan: one pass over live; primary keys.
	slotsInUseSQL = `
select l.id, l.kind, l.lane, l.subject, l.priority, l.attempt, l.fence, l.pod::text, coalesce(p.name, ''), l.claimed_at,
	l.cancel_requested, g.done, g.total, g.message
from trapeze.live l left join trapeze.pods p on p.boot = l.pod left join trapeze.job_progress g on g.id = l.id
where l.state = 'running' order by p.name, l.pod, l.claimed_at, l.id`
)

// Status reads everything in one snapshot.
func (s *Store) Status(ctx context.Context) (now Status, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.Snapshot(ctx, func(tx pgx.Tx) error {
		// Without its row the gate is closed.
		if now.Gate, err = askOne[job.Gate](ctx, s, tx, pgx.ErrNoRows, gateSQL); errors.Is(err, pgx.ErrNoRows) {
			now.Gate, err = job.Gate{Paused: true}, nil
		}
		if err == nil {
			now.Lanes, err = ask(ctx, s, tx, pgx.RowToStructByPos[LaneUse], laneUseSQL)
		}
		if err == nil {
			now.Pods, err = ask(ctx, s, tx, pgx.RowToStructByPos[job.Pod], podsSQL, false)
		}
		if err == nil {
			now.Running, err = ask(ctx, s, tx, scanSlot, slotsInUseSQL)
		}
		return err
	})
	if now.Running == nil {
		now.Running = []job.Slot{}
	}
	if now.Pods == nil {
		now.Pods = []job.Pod{}
	}
	if err != nil {
		return Status{}, fmt.Errorf("read the status: %w", err)
	}
	return now, nil
}

func scanSlot(row pgx.CollectableRow) (j job.Slot, err error) {
	var p job.Progress
	err = row.Scan(&j.Job, &j.Kind, &j.Lane, &j.Subject, &j.Priority, &j.Attempt, &j.Fence, &j.Boot, &j.Pod, &j.Since,
		&j.CancelRequested, &p.Done, &p.Total, &p.Message)
	if p != (job.Progress{}) {
		j.Progress = &p
	}
	return j, err
}
