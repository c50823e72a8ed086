package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/job"
)

// PodInfo describes a process that is about to run jobs.
type PodInfo struct {
	PodID   string
	Name    string
	Version string
	Kinds   []string
	Slots   int
	Limits  json.RawMessage // the limits of each kind as JSON
	Engines []string        // the engines that the process serves besides PostgreSQL; nil if there are none
	Before  string          // this process's previous pod id, if it lost its lease; otherwise empty
}

// registerSQL opens a pod's row. Each pod id is used only once. If an operator drained the pod by name, it stays drained until it is
// undrained, even across restarts. A process that takes a new pod id copies the drain from its previous row, which it finds by the previous
// pod id because other processes may have the same name. That row stays locked until the commit, so that a drain by name cannot miss the
// new row. Plan: pods is small, and this runs once per start.
var registerSQL = newStatement(`
with joined as (
	insert into trapeze.pods (id, name, version, kinds, slots, limits, engines, lease_until, drained)
	select @pod::uuid, @name::text, @version::text, @kinds::text[], @slots::int, @limits::jsonb, coalesce(@engines::text[], '{}'), now() + @lease::bigint * interval '1 millisecond',
		coalesce((select o.drained from trapeze.pods o where o.name = @name order by o.id = @before::uuid desc nulls last, o.started_at desc limit 1
			for no key update), false)
	on conflict (id) do nothing
	returning id
)
insert into trapeze.job_events (event_no, pod, event, message)
select 1, id, 'pod.joined', @name from joined`)

// Register opens a pod's row with a lease of the given length.
func (s *Store) Register(ctx context.Context, p PodInfo, lease time.Duration) error {
	_, err := run(ctx, s, pgx.RowTo[int], registerSQL, args{{"pod", p.PodID}, {"name", p.Name}, {"version", p.Version}, {"kinds", p.Kinds}, {"slots", p.Slots}, {"limits", p.Limits}, {"engines", p.Engines}, {"lease", lease.Milliseconds()}, {"before", Some(p.Before)}})
	if err != nil {
		return fmt.Errorf("register pod %s: %w", p.PodID, err)
	}
	return nil
}

// Lane is a row of the lanes table.
type Lane struct {
	Name        string `json:"name"`
	Slots       *int   `json:"slots"`         // limit across all pods; nil if unlimited
	SlotsPerPod *int   `json:"slots_per_pod"` // limit for each pod; nil if only the pod's own limit applies
	Wanted      bool   `json:"wanted"`        // another pod is waiting for its share of the slots
	Free        int    `json:"free"`          // slots that no pod holds
	Held        int    `json:"held"`          // slots that this pod holds
	Rated       bool   `json:"rated"`         // each start needs a call of TakeStarts
	Over        bool   `json:"over"`          // all pods together hold more slots than the lane has
	Enabled     bool   `json:"enabled"`
	Drained     bool   `json:"drained"`  // by an operator, or because another engine runs the lane's jobs
	Template    string `json:"template"` // from which it was made; empty if it was not
	Idle        bool   `json:"idle"`     // may be deleted soon: jobs that are submitted to it are parked as due

	InactivityTimeoutS *int `json:"inactivity_timeout_s"` // nil means the pod's setting; 0 for no limit
}

// LaneKind is a row of lane_kinds, which contains the default lane of a kind.
type LaneKind struct {
	Kind string `json:"kind"`
	Lane string `json:"lane"`
}

// CancelRequest notifies a pod that one of its claims must be cancelled.
type CancelRequest struct {
	JobID  int64      `json:"job_id"`
	Fence  int64      `json:"fence"`
	Reason job.Reason `json:"reason"` // cancelled, stopped or deadline
}

// Beat is the response to a heartbeat.
type Beat struct {
	Open       bool // false if the pod's row is closed or missing, so its jobs may run elsewhere
	Now        time.Time
	Paused     bool // the queue is paused or frozen
	Drained    bool // an operator has drained this pod
	Lanes      []Lane
	LaneKinds  []LaneKind
	Cancels    []CancelRequest
	Requests   []ClaimRequest
	NextDue    *time.Time    // the earliest due time of any parked job
	NextLapse  *time.Time    // the earliest lease expiry among the other open pods
	SweepIsDue bool          // a closed pod's jobs must be recovered
	OffBalance bool          // some fan-outs must be settled
	Left       time.Duration // remaining time of the lease
	NextFire   *time.Time    // when the next schedule of the requested kinds fires
	History    string        // see [Store.History]
	Place      fleet.Place   // this pod's place among the open pods that handle the same kinds and are not draining
}

// sweepDue is the condition for searching for a closed pod's jobs. The first search takes place immediately. Another follows each time that
// the time since the pod was closed has doubled, to find claims that were in flight when the pod was closed. The last search takes place
// ten minutes or more after the pod was closed. Index: pods_to_sweep.
const sweepDue = `p.closed_at is not null and (p.swept_at is null or p.swept_at - p.closed_at < interval '10 minutes')
	and (p.swept_at is null or now() - p.swept_at > p.swept_at - p.closed_at + interval '2 seconds')`

// heartbeatSQL renews a pod's lease and returns everything that a pod needs to know, in one statement. It renews even an expired lease,
// unless another pod has already closed the pod's row to recover its jobs. A closed row stays closed. If a pod serves an older stream of a
// remote worker, the worker's row appears closed to it; the pod with the latest stream may read without renewing. A lease_until later than
// now + 2 leases means that a clock has jumped, so that lease counts as expired. Plan: a primary key update of one narrow row; one page
// each of lanes, queue_state, pods and schedules; the first row of parked_for_promotion; one row each of cluster and feed_epoch.
var heartbeatSQL = newStatement(with(beatRenewed), "select ", list(beatLease, beatSettings, beatCancels, beatRequests, beatMoments, beatWork, beatLeft, beatFire, beatHistory, beatPlace))

// DueAt is an expression for the time of the next occurrence of schedule s. It is -infinity for a schedule that has not been planned yet,
// and null for one that never fires again. The schedules_due index uses the same expression.
const DueAt = `(case when s.planned then s.next_at else '-infinity' end)`

// Firing selects the schedules s that can fire.
const Firing = `from trapeze.schedules s where not s.paused and not s.removed`

// These are the columns that a heartbeat returns, in the order in which [scanBeat] reads them.
const (
	// beatRenewed renews the lease if the pod's row is open. Plan: pods_pkey, one narrow row; remote_workers_pkey.
	beatRenewed = `beat as (
	update trapeze.pods set draining = @draining,
		lease_until = case when @renew then now() + @lease::bigint * interval '1 millisecond' else lease_until end
	where id = @pod and ` + stillOpen + `
		and coalesce((select w.stream from trapeze.remote_workers w where w.pod = @pod), 0) = @stream
	returning id, drained, lease_until, kinds
)`
	// beatLease returns whether the beat CTE found the row, the current time, whether the queue is paused or frozen, and whether the pod is
	// drained.
	beatLease = `exists (select from beat), clock_timestamp(), coalesce((select paused or frozen from trapeze.queue_state), true),
	coalesce((select drained from beat), false)`
	// beatSettings returns lane_kinds, and lanes by name with the number of slots that the pod holds in each. It reads the grants only of
	// lanes with granted slots, because there may be thousands of limited lanes. It omits false, zero and null, so that a lane takes about 70 bytes.
	// It reports a lane as drained if another engine runs the lane's jobs, or if the lane is moving to another engine. Plan: one page each; slot_grants_pkey, limits_pkey.
	beatSettings = `
	coalesce((select json_agg(json_strip_nulls(json_build_object('name', n.name, 'slots', n.slots, 'slots_per_pod', n.slots_per_pod,
			'wanted', nullif(n.granted > 0 and n.slots is not null and exists (select from trapeze.slot_grants g
				join trapeze.pods p on p.id = g.pod and p.closed_at is null
				where g.lane = n.name and g.pod <> @pod and g.wants_since is not null), false),
			'free', nullif(greatest(n.slots - n.granted, 0), 0), 'held', case when n.granted > 0 and n.slots is not null then (
				select nullif(g.slots, 0) from trapeze.slot_grants g where g.lane = n.name and g.pod = @pod) end,
			'over', nullif(n.granted > n.slots, false), 'enabled', nullif(n.enabled, false), 'drained', nullif(n.drained or n.engine <> 'postgres' or n.next_engine is not null, false),
			'inactivity_timeout_s', n.inactivity_timeout_s, 'template', n.template, 'idle', nullif(n.idle_since is not null, false),
			'rated', nullif(exists (select from trapeze.limits x where x.scope = 'lane' and x.name = n.name and x.key = '' and (x.rate > 0 or x.held_until > now())), false)
			)) order by n.name)
		from trapeze.lanes n where n.name not like '%*'), '[]')::text,
	coalesce((select json_agg(json_build_object('kind', kind, 'lane', lane)) from trapeze.lane_kinds), '[]')::text`
	// beatCancels returns the cancel requests for the pod's claims. Plan: cancel_requests_pkey.
	beatCancels = `
	coalesce((select json_agg(json_build_object('job_id', job_id, 'fence', fence, 'reason', reason))
		from trapeze.cancel_requests where pod = @pod), '[]')::text`
	// beatRequests returns the unanswered requests about the pod's claims, oldest first, so that the later of two priorities applies. Plan:
	// claim_requests_open.
	beatRequests = `
	coalesce((select json_agg(json_build_object('id', id, 'job_id', job_id, 'fence', fence, 'what', what, 'priority', priority) order by id)
		from trapeze.claim_requests where pod = @pod and answered_at is null), '[]')::text`
	// beatMoments returns the time at which the next job becomes due, from the first row of parked_for_promotion, and the time at which the
	// next lease expires.
	beatMoments = `
	(select p.run_after from trapeze.parked p where p.why in ('scheduled', 'retry', 'snooze')
		order by p.run_after limit 1),
	(select min(least(p.lease_until, case when p.lease_until > now() + 2 * @lease::bigint * interval '1 millisecond'
			then now() end)) from trapeze.pods p where p.closed_at is null and p.id <> @pod)`
	// beatWork returns whether a sweep is due, and whether a fan-out must be settled. Plan: pods_to_sweep, fan_outs_off_balance.
	beatWork = `
	exists (select from trapeze.pods p where ` + sweepDue + `),
	exists (select from trapeze.fan_outs f where ` + offBalance + `)`
	// beatLeft returns the remaining milliseconds of the lease that the beat CTE renewed.
	beatLeft = `
	coalesce((select (extract(epoch from lease_until - now()) * 1000)::bigint from beat), 0)`
	// beatFire returns the time at which the next schedule fires. Plan: schedules is one page.
	beatFire = `
	(select case when s.planned then s.next_at else now() end ` + Firing + ` and s.kind = any(@fires::text[]) order by ` + DueAt + ` limit 1)`
	beatHistory = `
	coalesce((select trapeze.history())::text, '')`
	// beatPlace returns how many pods with the same kinds can claim jobs, and how many of them come before this one. Plan: pods_open.
	beatPlace = `
	(select array[count(*) filter (where p.id < @pod), count(*)]::int[] from trapeze.pods p join beat me using (kinds)
		where p.closed_at is null and p.lease_until > now() and p.slots > 0 and not p.draining and not p.drained)`
)

// Heartbeat renews a pod's lease for the given length, counted from the database's current time. The fires argument lists the kinds whose
// schedules the pod fires.
func (s *Store) Heartbeat(ctx context.Context, podID string, lease time.Duration, draining bool, fires ...string) (Beat, error) {
	return beat(ctx, s, podID, lease, draining, 0, true, fires)
}

func beat(ctx context.Context, s *Store, podID string, lease time.Duration, draining bool, stream int64, renew bool, fires []string) (Beat, error) {
	found, err := run(ctx, s, scanBeat, heartbeatSQL, args{{"pod", podID}, {"lease", lease.Milliseconds()},
		{"draining", draining}, {"stream", stream}, {"renew", renew}, {"fires", fires}})
	if err != nil {
		return Beat{}, fmt.Errorf("heartbeat: %w", err)
	}
	b := found[0]
	if b.History == "" {
		if b.History, err = s.SettleHistory(ctx); err != nil {
			return Beat{}, fmt.Errorf("heartbeat: %w", err)
		}
	}
	s.cluster.learn(b.History)
	return b, nil
}

func scanBeat(row pgx.CollectableRow) (b Beat, err error) {
	var lanes, kinds, cancels, requests string
	var left int64
	var place []int
	err = row.Scan(&b.Open, &b.Now, &b.Paused, &b.Drained, &lanes, &kinds, &cancels, &requests, &b.NextDue, &b.NextLapse, &b.SweepIsDue, &b.OffBalance, &left,
		&b.NextFire, &b.History, &place)
	if err != nil {
		return b, err
	}
	b.Left = time.Duration(left) * time.Millisecond
	b.Place = fleet.Place{Position: place[0], Pods: place[1]}
	for _, part := range []struct {
		text string
		into any
	}{{lanes, &b.Lanes}, {kinds, &b.LaneKinds}, {cancels, &b.Cancels}, {requests, &b.Requests}} {
		if err := json.Unmarshal([]byte(part.text), part.into); err != nil {
			return b, err
		}
	}
	return b, nil
}

// leaveSQL closes a pod's row permanently. The sweep finds any jobs that the pod still held.
var leaveSQL = newStatement(`
with closed as (
	update trapeze.pods set closed_at = now(), closed = 'left' where id = @pod and ` + stillOpen + ` returning id, name
)
insert into trapeze.job_events (event_no, pod, event, message)
select 1, id, 'pod.left', name from closed`)

// Leave closes the pod's row.
func (s *Store) Leave(ctx context.Context, podID string) error {
	if _, err := run(ctx, s, pgx.RowTo[int], leaveSQL, args{{"pod", podID}}); err != nil {
		return fmt.Errorf("close pod %s: %w", podID, err)
	}
	return nil
}

// These are the requests that a pod can receive about one of its claims.
const (
	RequestStack    = "stack"    // return the stack of the handler's goroutine
	RequestPriority = "priority" // change the priority of the next steps
)

// ClaimRequest is a request to the pod that holds a claim. Each heartbeat delivers it until the pod answers it.
type ClaimRequest struct {
	ID       int64  `json:"id"`
	JobID    int64  `json:"job_id"`
	Fence    int64  `json:"fence"`
	What     string `json:"what"`
	Priority *int   `json:"priority"`
}

// answerRequestSQL stores the answer to a request. A second answer has no effect. Plan: claim_requests_pkey, one row.
var answerRequestSQL = newStatement(`
update trapeze.claim_requests set answered_at = now(), answer = @answer where id = @id and answered_at is null returning id`)

// answerStackSQL stores the handler's stack for a claim as the answer to all requests for that stack. Plan: claim_requests_open, which is
// nearly always empty.
var answerStackSQL = newStatement(`
update trapeze.claim_requests set answered_at = now(), answer = @answer
where pod = @pod::uuid and answered_at is null and job_id = @job::bigint and fence = @fence::bigint and what = '` + RequestStack + `' returning id`)

// AnswerStack stores the handler's stack for a remote worker's claim as the answer to all requests for that stack.
func AnswerStack(ctx context.Context, s *Store, claim job.Lease, stack string) error {
	_, err := run(ctx, s, pgx.RowTo[int64], answerStackSQL, args{{"pod", claim.Pod}, {"job", claim.JobID}, {"fence", claim.Fence}, {"answer", stack}})
	if err != nil {
		return fmt.Errorf("answer a request for the stack of job %d: %w", claim.JobID, err)
	}
	return nil
}

// AnswerRequest stores the answer to a request.
func AnswerRequest(ctx context.Context, s *Store, id int64, answer string) error {
	if _, err := run(ctx, s, pgx.RowTo[int64], answerRequestSQL, args{{"id", id}, {"answer", Some(answer)}}); err != nil {
		return fmt.Errorf("answer request %d: %w", id, err)
	}
	return nil
}
