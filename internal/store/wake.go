package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A pod listens on two channels. The channel of the schema reaches all pods, and carries changes of settings and rare wake-ups. The pod's
// own channel, in the column pods.wake_channel, reaches only that pod. A wake-up is only a hint: a poll finds the jobs too. See ADR 0046.

// notifySQL wakes all listening pods when the transaction commits.
const (
	notifySQL         = `select pg_notify($1, '')`
	notifySettingsSQL = `select pg_notify($1, $2)`
)

// Settings is the payload of a wake-up after lanes, pods or the queue have changed. SlotsChanged begins the payload of a wake-up after the
// slots that are granted in limited lanes have changed. The names of the lanes follow, separated by spaces, unless
// they are too many. Any other payload is about jobs and, on the channel of all pods, about slots too.
const (
	Settings     = "settings"
	SlotsChanged = "slots "
)

// Channel returns the name of the notification channel of all pods in this schema.
func (db *Database) Channel() string { return db.schema + "_wake" }

// OwnChannel returns the name of the notification channel of one pod. A name has at most 63 bytes, of which the schema has at most 48.
func (db *Database) OwnChannel(boot string) string { return db.schema + "_" + boot[len(boot)-12:] }

// Notify wakes all pods in the caller's transaction.
func (db *Database) Notify(ctx context.Context, tx DB) error {
	_, err := tx.Exec(ctx, notifySQL, db.Channel())
	return err
}

// NotifySettings sends a wake-up that makes all pods reload the settings of lanes, pods and the queue.
func (db *Database) NotifySettings(ctx context.Context, tx DB) error {
	_, err := tx.Exec(ctx, notifySettingsSQL, db.Channel(), Settings)
	return err
}

// Claimable is a number of jobs that have become claimable.
type Claimable struct {
	Lane, Kind string
	Jobs       int
}

// CountJobs returns the total number of jobs.
func CountJobs(list []Claimable) (n int) {
	for _, c := range list {
		n += c.Jobs
	}
	return n
}

// notifyJobsSQL wakes a few pods that can run the jobs. Plan: function trapeze.wake reads the open pods, the lane, and its grants.
const notifyJobsSQL = `select trapeze.wake(w.lane, w.kind, w.jobs, $4::uuid) from unnest($1::text[], $2::text[], $3::int[]) as w(lane, kind, jobs)`

// NotifyJobs wakes a few pods that can run the jobs, in the caller's transaction. It does not wake the pod with the given boot ID, which may
// be empty.
func NotifyJobs(ctx context.Context, s *Store, tx DB, boot string, list []Claimable) error {
	_, err := tx.Exec(ctx, s.In(notifyJobsSQL), wakeArgs(boot, list)...)
	if err != nil {
		return fmt.Errorf("wake pods: %w", err)
	}
	return nil
}

func queueWakes(batch *pgx.Batch, s *Store, list []Claimable) {
	batch.Queue(s.In(notifyJobsSQL), wakeArgs("", list)...)
}

func wakeArgs(boot string, list []Claimable) []any {
	lanes, kinds, jobs := make([]string, len(list)), make([]string, len(list)), make([]int32, len(list))
	for i, w := range list {
		lanes[i], kinds[i], jobs[i] = w.Lane, w.Kind, int4(w.Jobs)
	}
	return []any{lanes, kinds, jobs, Some(boot)}
}

// WakesOf counts new jobs by lane and kind.
func WakesOf(jobs []NewJob) (list []Claimable) {
	at := map[[2]string]int{}
	for _, n := range jobs {
		key := [2]string{n.Lane, n.Kind}
		i, ok := at[key]
		if !ok {
			i = len(list)
			at[key], list = i, append(list, Claimable{Lane: n.Lane, Kind: n.Kind})
		}
		list[i].Jobs++
	}
	return list
}

// notifyLanesSQL wakes the pods to which a change of this pod's grants matters: the pods that are waiting for slots, as many as are free,
// and while any pod is waiting, the holders of more than their share. If none is waiting, two holders may want the free slots. Plan:
// lanes_pkey and slot_grants_pkey for each lane; pods is small.
var notifyLanesSQL = newStatement(`
with lane as (
	select n.name, greatest(n.slots - n.granted, 0) as spare, n.slots / greatest((select count(*) from trapeze.pods where closed_at is null
		and not draining and not drained and slots > 0), 1) as share
	from trapeze.lanes n where n.name = any(@lanes::text[]) and n.slots is not null
), grants as (
	select n.*, g.boot, g.slots, g.wants_since is not null as waits, p.wake_channel,
		bool_or(g.wants_since is not null) over of_lane as any_waits,
		row_number() over (partition by n.name order by g.wants_since, g.boot = @boot) as place
	from lane n join trapeze.slot_grants g on g.lane = n.name join trapeze.pods p on p.boot = g.boot and p.closed_at is null
	window of_lane as (partition by n.name)
)
select pg_notify(channel, case when octet_length(lanes) < 7000 then lanes else @all end)::text from (
	select coalesce(g.wake_channel, @all) as channel, @prefix || string_agg(g.name, ' ') as lanes from grants g
	where g.boot <> @boot and g.wake_channel is distinct from '' and case when g.waits then g.place <= greatest(g.spare, 1) + 1
		when g.any_waits then g.slots > g.share else g.spare > 0 and g.slots > 0 and g.place <= 2 end
	group by coalesce(g.wake_channel, @all)
) w`)

// NotifyLanes wakes the pods that may get slots of the lanes after a change by the given pod, or must return some.
func NotifyLanes(ctx context.Context, s *Store, boot string, lanes []string) error {
	if _, err := run(ctx, s, pgx.RowTo[string], notifyLanesSQL, args{{"boot", boot}, {"lanes", lanes}, {"all", s.Channel()}, {"prefix", SlotsChanged}}); err != nil {
		return fmt.Errorf("wake pods: %w", err)
	}
	return nil
}

// passOnSQL records that pods have no free slot, or are about to stop, and wakes two other pods that reported free slots. A pod that
// recorded so before wakes none, so a wake-up that finds the whole fleet busy ends. Plan: pods_pkey; pods is small.
var passOnSQL = newStatement(`
with busy as (
	update trapeze.pods set free_slots = 0, draining = draining or @draining where boot = any(@boots::uuid[]) and (free_slots > 0 or @draining) and closed_at is null returning kinds
)
select pg_notify(w.channel, '')::text from (
	select distinct coalesce(o.wake_channel, @all) as channel from (
		select p.wake_channel, row_number() over (partition by p.kinds order by random()) as place from trapeze.pods p
		where p.closed_at is null and p.lease_until > now() and not p.draining and not p.drained and p.wake_channel is distinct from ''
			and coalesce(p.free_slots, 1) > 0 and p.boot <> all(@boots::uuid[]) and exists (select from busy b where b.kinds && p.kinds)
	) o where o.place <= 2
) w`)

// PassOn wakes two other pods with free slots, because the given pods were woken and have none, or are about to stop.
func PassOn(ctx context.Context, s *Store, boots []string, draining bool) error {
	if _, err := run(ctx, s, pgx.RowTo[string], passOnSQL, args{{"boots", boots}, {"draining", draining}, {"all", s.Channel()}}); err != nil {
		return fmt.Errorf("pass on a wake-up: %w", err)
	}
	return nil
}
