package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// movingLanesSQL lists the lanes that are moving to another engine. Plan: lanes is one page.
	movingLanesSQL = `select n.name from trapeze.lanes n where n.next_engine is not null order by n.name`
	// lockMoveSQL locks a lane that may be moving. Plan: primary key lookup.
	lockMoveSQL = `select n.engine, coalesce(n.next_engine, ''), n.heard from trapeze.lanes n where n.name = $1 for update`
	// noteHeardSQL stores which pods have confirmed the move. Plan: primary key lookup; HOT update.
	noteHeardSQL = `update trapeze.lanes set heard = $2 where name = $1`
	// switchEngineSQL ends a move. Plan: primary key lookup; HOT update.
	switchEngineSQL = `update trapeze.lanes set engine = next_engine, next_engine = null, heard = null where name = $1`
)

// Heard tracks which pods have applied a command that was committed before the first poll. A heartbeat that was in flight at that time may
// have missed the command, but the next heartbeat reads it. A pod has therefore applied the command once its lease expiry has changed
// twice. The next poll sees the results of everything that the pod sent before applying the command.
type Heard map[string]*HeardPod

// HeardPod tracks one pod's lease.
type HeardPod struct {
	Until string `json:"until"` // the lease's expiry at the latest poll
	Times int    `json:"times"` // how many times the expiry has changed
}

// Record records the leases read by one poll. It returns how many pods had not applied the command by the previous poll.
func (h Heard) Record(leases map[string]string) (missing int) {
	for podID, until := range leases {
		heardPod := h[podID]
		if heardPod == nil {
			heardPod = &HeardPod{Until: until}
			h[podID] = heardPod
		}
		if heardPod.Times < 2 {
			missing++
		}
		if heardPod.Until != until {
			heardPod.Until = until
			heardPod.Times++
		}
	}
	return missing
}

// LanesChangingEngine returns the lanes that are moving to another engine.
func LanesChangingEngine(ctx context.Context, s *store.Store) ([]string, error) {
	list, err := store.Rows(ctx, s, pgx.RowTo[string], movingLanesSQL)
	if err != nil {
		return nil, fmt.Errorf("list the lanes that move: %w", err)
	}
	return list, nil
}

// MoveOn polls a lane's move to another engine, and completes the move if no job is running in the lane and no pod can start one. The pods'
// confirmations are stored with the lane, so any process can continue the move, and several can poll concurrently. It returns
// [job.ErrUnknownLane] if the lane does not exist.
func MoveOn(ctx context.Context, s *store.Store, lane, actor string) (m job.LaneMove, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		m, err = moveOnIn(ctx, s, tx, lane, actor)
		return err
	})
	if err != nil {
		return job.LaneMove{}, fmt.Errorf("move lane %q to another engine: %w", lane, err)
	}
	return m, nil
}

func moveOnIn(ctx context.Context, s *store.Store, tx pgx.Tx, lane, actor string) (job.LaneMove, error) {
	type moving struct {
		Engine, Next string
		Heard        []byte
	}
	at, err := store.QueryOne[moving](ctx, s, tx, job.ErrUnknownLane, lockMoveSQL, lane)
	m := job.LaneMove{Lane: lane, Engine: at.Engine, Next: at.Next}
	if err != nil || m.Next == "" {
		return m, err
	}
	heard := Heard{}
	if at.Heard != nil {
		if err := json.Unmarshal(at.Heard, &heard); err != nil {
			return m, err
		}
	}
	// A pod starts no jobs in the lane once it has applied the move. Another engine's forwarder locks the lane while it claims jobs.
	running, leases, err := runningIn(ctx, s, tx, Scope{Lane: lane})
	if err != nil {
		return m, err
	}
	m.Running, m.Pods = running, heard.Record(leases)
	if m.Running > 0 || m.Pods > 0 {
		now, err := json.Marshal(heard)
		if err == nil {
			_, err = tx.Exec(ctx, s.In(noteHeardSQL), lane, string(now))
		}
		return m, err
	}
	before := m
	m.Engine, m.Next = m.Next, ""
	if _, err := tx.Exec(ctx, s.In(switchEngineSQL), lane); err != nil {
		return m, err
	}
	return m, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "lane.engine", Target: "lane " + lane, Before: laneEngine{before.Engine}, After: laneEngine{m.Engine}},
		Event:      "lane.changed", About: lane,
	})
}

// laneEngine is the value before or after a move, as recorded in the audit entry.
type laneEngine struct {
	Engine string `json:"engine"`
}
