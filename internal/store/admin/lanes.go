package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// createLaneSQL creates a lane with default settings. Plan: one insert.
	createLaneSQL = `insert into trapeze.lanes (name) values ($1) on conflict (name) do nothing`
	// lockLaneSQL reads a lane's settings and locks them until the transaction ends. Plan: primary key lookup.
	lockLaneSQL = `
select n.name, n.slots, n.slots_per_pod, n.inactivity_timeout_s, n.max_age_s, n.start_within_s, n.requires_approval, n.four_eyes, n.enabled, n.drained, n.engine, n.next_engine, n.template,
	array(select k.kind from trapeze.lane_kinds k where k.lane = n.name order by k.kind) as kinds
from trapeze.lanes n where n.name = $1 for update of n`
	// setLaneSQL changes a lane's settings. A lane that was made from a template no longer takes them from it. The caller has locked its row. Plan: primary
	// key lookup; HOT update.
	setLaneSQL = `
update trapeze.lanes set template = null, idle_since = null, slots = $2, slots_per_pod = $3, inactivity_timeout_s = $4, max_age_s = $5, start_within_s = $6,
	requires_approval = $7, four_eyes = $8, enabled = $9, next_engine = $10, heard = case when next_engine is not distinct from $10 then heard end
where name = $1`
	// engineServedSQL reports whether an open pod serves an engine. Plan: one pass over pods, which is small.
	engineServedSQL = `select exists (select from trapeze.pods p where p.closed_at is null and $1 = any(p.engines))`
	// laneJobsSQL counts a lane's running and due jobs. Plan: live_for_claim and parked_of_lane, the lane's rows.
	laneJobsSQL = `
select count(*) filter (where state = 'running')::int, count(*) filter (where state = 'pending')::int
	+ (select count(*)::int from trapeze.parked p where p.lane = $1 and p.why in ('subject', 'key'))
from trapeze.live where lane = $1`
)

// SetLane creates or changes a lane, and makes it the default lane of the given kinds. If the default lane of a kind changes, the kind's
// due and parked jobs must be moved: the caller passes the returned moves to [Move]. If nothing changes, SetLane writes no audit entry and
// no event. It returns [job.ErrUnknownLane] if c requires an existing lane and there is none, [job.ErrInvalidSetting] if a setting is
// invalid, and [job.ErrNoEngine] if no open pod serves the new engine.
func SetLane(ctx context.Context, s *store.Store, name string, c job.LaneChange, actor string) (done job.LaneChanged, moves []Moving, err error) {
	err = c.Validate()
	if err == nil {
		err = s.Tx(ctx, func(tx pgx.Tx) error {
			done, moves, err = setLaneIn(ctx, s, tx, name, c, actor)
			if err == nil && c.DryRun {
				return errDry
			}
			return err
		})
	}
	if err != nil && !errors.Is(err, errDry) {
		return job.LaneChanged{}, nil, fmt.Errorf("%w (set lane %q)", err, name)
	}
	return done, moves, nil
}

func setLaneIn(ctx context.Context, s *store.Store, tx pgx.Tx, name string, c job.LaneChange, actor string) (done job.LaneChanged, moves []Moving, err error) {
	done = job.LaneChanged{Lane: name, DryRun: c.DryRun, Changed: []string{}}
	if done.Created, err = createLane(ctx, s, tx, name, c.Existing); err != nil {
		return done, nil, err
	}
	before, err := store.QueryOne[job.Lane](ctx, s, tx, job.ErrUnknownLane, lockLaneSQL, name)
	if err != nil {
		return done, nil, err
	}
	after := c.Apply(before)
	if job.IsLaneTemplate(name) && (after.NextEngine != nil || len(after.Kinds) > 0) {
		return done, nil, fmt.Errorf("%w: a template has no engine and no kinds: set those of a lane", job.ErrInvalidSetting)
	}
	after.Template = nil
	if after.FourEyes && !after.RequiresApproval {
		return done, nil, fmt.Errorf("%w: four_eyes of a lane whose jobs need no approval: set requires_approval too", job.ErrInvalidSetting)
	}
	if err := checkEngine(ctx, s, tx, before, after); err != nil {
		return done, nil, err
	}
	done.Before, done.After, done.Changed = &before, &after, changedFields(before, after)
	if done.Created {
		done.Before = nil
	}
	if _, err := tx.Exec(ctx, s.In(setLaneSQL), name, after.Slots, after.SlotsPerPod, after.InactivityTimeout, after.MaxAge, after.StartWithin,
		after.RequiresApproval, after.FourEyes, after.Enabled, after.NextEngine); err != nil {
		return done, nil, err
	}
	if err := followTemplate(ctx, s, tx, name); err != nil {
		return done, nil, err
	}
	if c.Kinds != nil {
		if moves, err = giveKinds(ctx, s, tx, name, after.Kinds); err != nil {
			return done, nil, err
		}
	}
	if err := countJobs(ctx, s, tx, &done, moves); err != nil {
		return done, nil, err
	}
	if !done.Created && len(done.Changed) == 0 {
		return done, moves, nil
	}
	return done, moves, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "lane.set", Target: "lane " + name, Before: done.Before, After: done.After},
		Event:      "lane.changed", About: name,
	})
}

// checkEngine returns [job.ErrNoEngine] if a change moves a lane to an engine that no open pod serves.
func checkEngine(ctx context.Context, s *store.Store, tx pgx.Tx, before, after job.Lane) error {
	if after.NextEngine == nil || *after.NextEngine == job.EnginePostgreSQL || before.NextEngine != nil && *before.NextEngine == *after.NextEngine {
		return nil
	}
	served, err := store.QueryOne[struct{ Served bool }](ctx, s, tx, nil, engineServedSQL, *after.NextEngine)
	if err == nil && !served.Served {
		err = fmt.Errorf("%w %s: start a pod whose program registers it", job.ErrNoEngine, *after.NextEngine)
	}
	return err
}

// createLane creates a lane if it does not exist. If existing is set, it never creates one.
func createLane(ctx context.Context, s *store.Store, tx pgx.Tx, name string, existing bool) (created bool, err error) {
	if existing {
		return false, nil
	}
	if err := job.ValidateLaneName(name); err != nil {
		// An old lane, or one inserted through SQL, may have any name.
		_, unknown := store.QueryOne[job.Lane](ctx, s, tx, err, lockLaneSQL, name)
		return false, unknown
	}
	tag, err := tx.Exec(ctx, s.In(createLaneSQL), name)
	return err == nil && tag.RowsAffected() == 1, err
}

// countJobs counts the running and due jobs in a lane, and the jobs that must be moved.
func countJobs(ctx context.Context, s *store.Store, tx pgx.Tx, done *job.LaneChanged, moves []Moving) error {
	type jobs struct{ Running, Waiting int }
	n, err := store.QueryOne[jobs](ctx, s, tx, nil, laneJobsSQL, done.Lane)
	if err != nil {
		return err
	}
	done.Running, done.Waiting = n.Running, n.Waiting
	for _, m := range moves {
		n, err := countMoves(ctx, s, tx, m)
		if err != nil {
			return err
		}
		done.Moved += n
	}
	return nil
}

// changedFields returns the JSON names of the settings that differ between two lanes or two schedules.
func changedFields[T any](a, b T) []string {
	names := []string{}
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		kinds, ok := x.Field(i).Interface().([]string)
		same := ok && slices.Equal(kinds, y.Field(i).Interface().([]string)) || !ok && reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface())
		if !same {
			names = append(names, x.Type().Field(i).Tag.Get("json"))
		}
	}
	return names
}

const (
	// lockKindsSQL reads the default lanes of the given kinds and of all kinds assigned to the given lane, and locks them until the
	// transaction ends. Plan: one pass over lane_kinds, which is small.
	lockKindsSQL = `select kind, lane from trapeze.lane_kinds where kind = any($1::text[]) or lane = $2 order by kind for update`
	// giveKindsSQL makes a lane the default lane of the given kinds. Plan: primary key lookup.
	giveKindsSQL = `
insert into trapeze.lane_kinds (kind, lane) select k, $2 from unnest($1::text[]) as k order by k
on conflict (kind) do update set lane = excluded.lane where lane_kinds.lane <> excluded.lane`
	// dropKindsSQL resets the kinds' default lane to the lane named default. Plan: primary key lookup.
	dropKindsSQL = `delete from trapeze.lane_kinds where kind = any($1::text[])`
)

// giveKinds makes a lane the default lane of exactly the given kinds. It returns the moves needed for jobs that are now in the wrong lane.
func giveKinds(ctx context.Context, s *store.Store, tx pgx.Tx, lane string, kinds []string) (moves []Moving, err error) {
	was, err := lanesOfKinds(ctx, s, tx, kinds, lane)
	if err != nil {
		return nil, err
	}
	add := func(kind, from, to string) {
		if from != to {
			moves = append(moves, Moving{From: from, Kinds: []string{kind}, To: to})
		}
	}
	for _, kind := range kinds {
		from := was[kind]
		if from == "" {
			from = job.DefaultLane
		}
		add(kind, from, lane)
		delete(was, kind)
	}
	var dropped []string // the remaining kinds belonged to this lane
	for kind, from := range was {
		dropped = append(dropped, kind)
		add(kind, from, job.DefaultLane)
	}
	if _, err := tx.Exec(ctx, s.In(giveKindsSQL), kinds, lane); err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, s.In(dropKindsSQL), dropped)
	return moves, err
}

// lanesOfKinds returns the default lanes of the given kinds and of all kinds assigned to the given lane.
func lanesOfKinds(ctx context.Context, s *store.Store, tx pgx.Tx, kinds []string, lane string) (map[string]string, error) {
	list, err := store.Query(ctx, s, tx, pgx.RowToStructByPos[store.LaneKind], lockKindsSQL, kinds, lane)
	if err != nil {
		return nil, err
	}
	lanes := make(map[string]string, len(list))
	for _, k := range list {
		lanes[k.Kind] = k.Lane
	}
	return lanes, nil
}

const (
	// waitingInLaneSQL reports whether a lane has any due or parked jobs. Plan: live_for_claim up to its first pending row; parked up to
	// the lane's first row, at worst one full pass.
	waitingInLaneSQL = `
select exists (select from trapeze.live where lane = $1 and state = 'pending')
	or exists (select from trapeze.parked where lane = $1)`
	// moveKindsSQL assigns a lane's kinds to another lane. Plan: one pass over lane_kinds, which is small.
	moveKindsSQL = `update trapeze.lane_kinds set lane = $2 where lane = $1`
	// deleteLaneSQL deletes a lane that has no kinds, and the limits of its keys. Plan: primary key lookups; the lane's slot_grants are deleted with it.
	deleteLaneSQL = `with limits as (delete from trapeze.limits where scope = 'lane' and name = $1) delete from trapeze.lanes where name = $1`
)

// DeleteLane deletes a lane, and moves its due and parked jobs and its kinds to the lane named to. If to is empty, the lane must have no
// jobs, and its kinds move to the default lane. If to does not exist but matches a template, it is made. Running jobs in the lane continue. Callers should call [Move] first, so that few jobs are
// left for this transaction. It returns [job.ErrUnknownLane] if either lane does not exist, [job.ErrLaneNotEmpty] if jobs remain in the
// lane, and [job.ErrInvalidSetting] if name is the default lane or if to names the same lane.
func DeleteLane(ctx context.Context, s *store.Store, name, to, actor string, dry bool) (done job.LaneChanged, err error) {
	var moved []store.Line
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		moved = nil
		done, err = deleteLaneIn(ctx, s, tx, name, to, actor, &moved)
		if err == nil && dry {
			done.DryRun = true
			return errDry
		}
		return err
	})
	if err != nil && !errors.Is(err, errDry) {
		return job.LaneChanged{}, fmt.Errorf("delete lane %q: %w", name, err)
	}
	_ = admitMoved(ctx, s, moved) // also after a dry run, which has locked the jobs; after an error, polls do the same
	return done, nil
}

func deleteLaneIn(ctx context.Context, s *store.Store, tx pgx.Tx, name, to, actor string, moved *[]store.Line) (done job.LaneChanged, err error) {
	done = job.LaneChanged{Lane: name, Changed: []string{}}
	if name == job.DefaultLane {
		return done, fmt.Errorf("%w: lane %q cannot be deleted", job.ErrInvalidSetting, name)
	}
	if job.IsLaneTemplate(to) {
		return done, fmt.Errorf("%w: lane %q is a template: move the jobs to another lane", job.ErrInvalidSetting, to)
	}
	if name == to {
		return done, fmt.Errorf("%w: move the jobs of lane %q to another lane", job.ErrInvalidSetting, name)
	}
	target := to // target lane for the kinds
	if to == "" {
		target = job.DefaultLane
	}
	var before job.Lane
	lanes := []string{name, target}
	slices.Sort(lanes) // every transaction locks lanes in this order
	for _, one := range lanes {
		if one == to {
			if _, err := tx.Exec(ctx, s.In(makeLanesSQL), []string{to}); err != nil {
				return done, err
			}
		}
		lane, err := store.QueryOne[job.Lane](ctx, s, tx, fmt.Errorf("%w: %q", job.ErrUnknownLane, one), lockLaneSQL, one)
		if err != nil {
			return done, err
		}
		if one == name {
			before = lane
		}
	}
	done.Before = &before
	m := Moving{From: name, To: to}
	if err := countJobs(ctx, s, tx, &done, []Moving{m}); err != nil {
		return done, err
	}
	if err := emptyLane(ctx, s, tx, m, done.Running, actor, moved); err != nil {
		return done, err
	}
	if _, err := tx.Exec(ctx, s.In(moveKindsSQL), name, target); err != nil {
		return done, err
	}
	if _, err := tx.Exec(ctx, s.In(deleteLaneSQL), name); err != nil {
		return done, err
	}
	return done, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "lane.delete", Target: "lane " + name, Before: before},
		Event:      "lane.changed", About: name,
	})
}

// emptyLane moves a lane's due and parked jobs to the target lane, if there is one, and adds their lines to moved.
func emptyLane(ctx context.Context, s *store.Store, tx pgx.Tx, m Moving, running int, actor string, moved *[]store.Line) error {
	if m.To == "" && running > 0 {
		return job.ErrLaneNotEmpty
	}
	for _, sql := range []string{moveLiveSQL, moveParkedSQL} {
		for after := int64(0); m.To != ""; {
			p, err := moveNextPage(ctx, s, tx, sql, m, after, actor)
			if err != nil {
				return err
			}
			*moved = append(*moved, p.Lines...)
			if after = p.Last; p.Seen < movePage {
				break
			}
		}
	}
	waits, err := store.Query(ctx, s, tx, pgx.RowTo[bool], waitingInLaneSQL, m.From)
	if err == nil && waits[0] {
		err = job.ErrLaneNotEmpty // if there is a target lane, the remaining jobs were skipped because their rows are locked
	}
	return err
}

// strandedSQL lists lanes that have due jobs but do not exist. This happens if a lane is deleted while a job is being submitted to it, or
// if a job that was running in it becomes pending again after the deletion. It finds other parked jobs once they are due. Plan: one
// lookup in live_for_claim and parked_of_lane for each lane name in them.
const strandedSQL = `
with recursive names(lane) as (
	select ''
	union all
	select least((select l.lane from trapeze.live l where l.lane > n.lane order by l.lane, (-l.priority), l.ready_at, l.id limit 1),
		(select p.lane from trapeze.parked p where p.why in ('subject', 'key') and p.lane > n.lane order by p.lane, (-p.priority), p.run_after, p.id limit 1))
	from names n where n.lane is not null
)
select n.lane from names n
where n.lane <> '' and not exists (select from trapeze.lanes a where a.name = n.lane)
	and (exists (select from trapeze.live l where l.lane = n.lane and l.state = 'pending')
		or exists (select from trapeze.parked p where p.lane = n.lane and p.why in ('subject', 'key')))`

// makeLanesSQL makes those of the given lanes that match a template. Plan: as for [store.MakeLanes].
var makeLanesSQL = `with ` + store.MakeLanes(`select w.lane from unnest($1::text[]) as w(lane)`) + ` select name from made`

// MoveStranded moves due jobs from lanes that do not exist to the lanes of their kinds, and returns how many it moved. It makes the lanes that match a
// template instead, and returns how many it made. Several pods can safely call it concurrently.
func MoveStranded(ctx context.Context, s *store.Store) (total, made int, err error) {
	lanes, err := store.Rows(ctx, s, pgx.RowTo[string], strandedSQL)
	var templated []string
	if err == nil && len(lanes) > 0 {
		templated, err = store.Rows(ctx, s, pgx.RowTo[string], makeLanesSQL, lanes)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find jobs of lanes that do not exist: %w", err)
	}
	made = len(templated)
	for _, lane := range without(lanes, templated) {
		moved, _, err := Move(ctx, s, Moving{From: lane}, "system")
		total += moved
		if err != nil {
			return total, made, err
		}
	}
	return total, made, nil
}

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
	return view.Rows(ctx, s, "list the lanes that move", pgx.RowTo[string], movingLanesSQL)
}

// ContinueLaneMove polls a lane's move to another engine, and completes the move if no job is running in the lane and no pod can start one. The pods'
// confirmations are stored with the lane, so any process can continue the move, and several can poll concurrently. It returns
// [job.ErrUnknownLane] if the lane does not exist.
func ContinueLaneMove(ctx context.Context, s *store.Store, lane, actor string) (m job.LaneMove, err error) {
	m, err = inTx(ctx, s, func(tx pgx.Tx) (job.LaneMove, error) { return moveOnIn(ctx, s, tx, lane, actor) })
	return m, text.Wrap(err, "move lane %q to another engine", lane)
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

const (
	// hasLaneSQL reports whether a lane exists. It runs first, so that a role without the insert privilege can start if nothing is missing.
	// Plan: primary key lookup.
	hasLaneSQL = `select exists (select from trapeze.lanes where name = $1 and template is null)`
	// keepsDefaultSQL reports whether the lane default has been changed since the migrations created it. Plan: as for bootDefaultSQL.
	keepsDefaultSQL = `select not exists (select from trapeze.lanes l where l.name = $1 and ` + untouched + `)`
	// untouched holds for the lane default until an operator or a declaration changes it.
	untouched = `l.slots is null and l.slots_per_pod is null and not exists (select from trapeze.audit a where a.target = 'lane default')`
	// bootDefaultSQL sets the limits of the lane default if it is untouched. Plan: primary key lookup; audit_of_target.
	bootDefaultSQL = `update trapeze.lanes l set slots = $2, slots_per_pod = $3 where l.name = $1 and ` + untouched
	// bootLaneSQL creates a lane unless its name is taken. A lane that was made from a template takes the declared limits. Plan: one insert.
	bootLaneSQL = `
insert into trapeze.lanes as l (name, slots, slots_per_pod) values ($1, $2, $3)
on conflict (name) do update set slots = excluded.slots, slots_per_pod = excluded.slots_per_pod, template = null, idle_since = null where l.template is not null`
	// bootKindsSQL assigns kinds that have no lane to a new lane. Plan: primary key lookup.
	bootKindsSQL = `
insert into trapeze.lane_kinds (kind, lane) select k, $2 from unnest($1::text[]) as k order by k
on conflict (kind) do nothing returning kind`
)

// BootLane is a lane that a program declares. Settings in the database override the declaration.
type BootLane struct {
	Name  string
	Slots *int // limit across all pods, or nil for no limit
	Kinds []string
	// SlotsPerPod limits how many of the lane's jobs a pod runs concurrently. Nil means no limit.
	SlotsPerPod *int
}

// Bootstrap creates a lane, and assigns to it the declared kinds that have no lane yet. If the name is taken, it does nothing. The lane
// default, if it exists, is taken once its settings have been changed. Bootstrap reports whether it created the lane, and which kinds it
// did not assign. Several pods can safely call it concurrently.
func Bootstrap(ctx context.Context, s *store.Store, l BootLane) (made bool, left []string, err error) {
	create := bootLaneSQL
	keep, err := store.Rows(ctx, s, pgx.RowTo[bool], hasLaneSQL, l.Name)
	if err == nil && keep[0] && l.Name == job.DefaultLane && (l.Slots != nil || l.SlotsPerPod != nil || len(l.Kinds) > 0) {
		create = bootDefaultSQL
		keep, err = store.Rows(ctx, s, pgx.RowTo[bool], keepsDefaultSQL, l.Name)
	}
	if err != nil || keep[0] {
		return false, nil, err
	}
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		made, left = false, nil
		tag, err := tx.Exec(ctx, s.In(create), l.Name, l.Slots, l.SlotsPerPod)
		if made = err == nil && tag.RowsAffected() == 1; !made {
			return err
		}
		got, err := store.Query(ctx, s, tx, pgx.RowTo[string], bootKindsSQL, l.Kinds, l.Name)
		if err != nil {
			return err
		}
		left = without(l.Kinds, got)
		after, err := store.QueryOne[job.Lane](ctx, s, tx, nil, lockLaneSQL, l.Name)
		if err != nil {
			return err
		}
		return operates(ctx, s, tx, operation{
			AuditEntry: AuditEntry{Actor: "system", Action: "lane.set", Target: "lane " + l.Name, After: after},
			Event:      "lane.changed", About: l.Name,
		})
	})
	return made, left, text.Wrap(err, "bootstrap lane %q", l.Name)
}

// without returns the elements of all that are not in some.
func without[T comparable](all, some []T) (rest []T) {
	have := map[T]bool{}
	for _, one := range some {
		have[one] = true
	}
	for _, one := range all {
		if !have[one] {
			rest = append(rest, one)
		}
	}
	return rest
}
