package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// narrowLane is a lane with few slots per pod.
const narrowLane = "narrow"

// narrowSlots is the default number of slots per pod in the narrow lane.
const narrowSlots = 2

// limitedLane is a lane with few slots across all pods, and limitedSlots is the default number of slots.
const (
	limitedLane  = "limited"
	limitedSlots = 3
)

// keySlots is the default number of jobs of each key that may run at a time in the default lane.
const keySlots = 3

// ratedLane is a lane with a rate, and fastRate the rate that empties it at the end.
const (
	ratedLane = "rated"
	fastRate  = 20
)

// tenantLanes is a template of lanes with tenantSlots slots each, across all pods. The clients use some of its tenantNames lanes at a time, so that others
// become empty and are deleted.
const (
	tenantLanes = "tenant/*"
	tenantSlots = 2
	tenantNames = 20
	tenants     = 5 // lanes in use at a time
)

// keepMade is the grace period before maintenance may delete a lane that it has marked as empty. The program's is longer, but only the pods' lease matters.
const keepMade = leaseDuration + 10*time.Second

// operator changes lanes, limits per key, the rate of a lane and the queue state while jobs are running. It writes directly to the database, except for the rate.
type operator struct {
	c *Crowd
	r *rand.Rand
}

// prepare creates the lanes.
func (o *operator) prepare(ctx context.Context) error {
	const sql = `insert into trapeze.lanes (name, slots_per_pod, slots) values ($1, $2, null), ($3, null, $4), ($5, null, null), ($6, null, $7) on conflict (name) do nothing`
	_, err := o.c.w.Admin.Exec(ctx, sql, narrowLane, narrowSlots, limitedLane, limitedSlots, ratedLane, tenantLanes, tenantSlots)
	slots := tenantSlots
	o.do(ctx, history.Call{Verb: "lane", Lane: tenantLanes, Slots: &slots}, `select`)
	o.rate(ctx, 3, 2)
	o.limit(ctx, limitedSlots) // records the limit
	o.keyLimit(ctx, "*", keySlots)
	return err
}

// run makes a change every few seconds until ctx is cancelled, and then reopens all lanes and the queue.
func (o *operator) run(ctx context.Context) {
	for sleep(ctx, 3*time.Second+time.Duration(o.r.IntN(5000))*time.Millisecond) {
		o.ageMarks(ctx)
		switch o.r.IntN(23) {
		case 18, 19, 20, 21, 22:
			o.rate(ctx, 1+o.r.IntN(6), 1+o.r.IntN(4))
		case 14, 15:
			o.keyLimit(ctx, "*", 1+o.r.IntN(4))
		case 16, 17:
			o.keyLimit(ctx, "key 0", o.r.IntN(4))
		case 0, 1, 2, 3, 4:
			slots := []int{0, 1, 2, 3, 5, -1}[o.r.IntN(6)]
			o.lane(ctx, slots, true)
			if slots == 0 {
				sleep(ctx, time.Duration(500+o.r.IntN(2500))*time.Millisecond)
				o.lane(ctx, 1, true)
			}
		case 5, 6, 7:
			o.lane(ctx, narrowSlots, false)
			sleep(ctx, time.Duration(500+o.r.IntN(2500))*time.Millisecond)
			o.lane(ctx, narrowSlots, true)
		case 8, 9, 10, 11:
			slots := o.r.IntN(5)
			o.limit(ctx, slots)
			if slots == 0 {
				sleep(ctx, time.Second)
				o.limit(ctx, 1+o.r.IntN(4))
			}
		default:
			o.setPaused(ctx, true)
			sleep(ctx, time.Second)
			o.setPaused(ctx, false)
		}
	}
	opening, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	o.lane(opening, narrowSlots, true)
	o.limit(opening, limitedSlots)
	o.keyLimit(opening, "*", keySlots)
	o.rate(opening, fastRate, 4)
	o.setPaused(opening, false)
}

// ageMarks lets maintenance delete the lanes that it has marked as idle for long enough.
func (o *operator) ageMarks(ctx context.Context) {
	trying, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	_, _ = o.c.w.Admin.Exec(trying, `update trapeze.lanes set idle_since = now() - interval '1 hour' where idle_since < now() - $1::bigint * interval '1 ms'`,
		keepMade.Milliseconds()) // best effort: the database may be down
}

// lane sets the narrow lane's number of slots per pod, where -1 means no limit, and enables or disables the lane.
func (o *operator) lane(ctx context.Context, slots int, enabled bool) {
	call := history.Call{Verb: "lane", Lane: narrowLane, SlotsPerPod: &slots, Enabled: &enabled}
	const sql = `update trapeze.lanes set slots_per_pod = nullif($2, -1), enabled = $3 where name = $1`
	o.do(ctx, call, sql, narrowLane, slots, enabled)
}

// limit sets the limited lane's number of slots across all pods.
func (o *operator) limit(ctx context.Context, slots int) {
	o.do(ctx, history.Call{Verb: "lane", Lane: limitedLane, Slots: &slots}, `update trapeze.lanes set slots = $2 where name = $1`, limitedLane, slots)
}

// keyLimit limits the jobs of a key, or of each key, in the default lane. With 0 slots, it removes the limit.
func (o *operator) keyLimit(ctx context.Context, key string, slots int) {
	const sql = `with gone as (delete from trapeze.limits where scope = 'lane' and name = $1 and key = $2 and $3::int = 0)
insert into trapeze.limits (scope, name, key, slots) select 'lane', $1, $2, $3::int where $3::int > 0
on conflict (scope, name, key) do update set slots = excluded.slots`
	o.do(ctx, history.Call{Verb: "key_limit", Lane: job.DefaultLane, JobKey: key, Slots: &slots}, sql, job.DefaultLane, key, slots)
}

// rate limits how many jobs of the rated lane start per second. It asks pods until one of them reports success.
func (o *operator) rate(ctx context.Context, rate, burst int) {
	body, _ := json.Marshal(map[string]any{"scope": "lane", "name": ratedLane, "key": "", "rate": rate, "per": 1, "burst": burst})
	for {
		if pod, ok := o.c.pod(o.r.IntN(60)); ok {
			call := o.c.begin(0, "rate", pod)
			call.Lane, call.Rate, call.Burst = ratedLane, &rate, &burst
			o.c.send(context.WithoutCancel(ctx), &call, pod, http.MethodPatch, "/admin/workers/limits", body)
			if call.Status == http.StatusBadRequest {
				o.c.w.fail(fmt.Errorf("set a rate: the pod refuses %s", body))
			}
			if call.Outcome == history.OK {
				return
			}
		}
		if !sleep(ctx, 300*time.Millisecond) {
			return
		}
	}
}

func (o *operator) setPaused(ctx context.Context, paused bool) {
	o.do(ctx, history.Call{Verb: "queue_state", Paused: &paused}, `update trapeze.queue_state set paused = $1`, paused)
}

// do executes a statement until it succeeds or ctx is cancelled. It records each attempt as a separate call, because even a failed attempt
// may have taken effect.
func (o *operator) do(ctx context.Context, call history.Call, sql string, args ...any) {
	for {
		call.N, call.Began = int(o.c.calls.Add(1)), time.Now()
		trying, cancel := context.WithTimeout(ctx, clientPatience)
		_, err := o.c.w.Admin.Exec(trying, sql, args...)
		cancel()
		call.Ended, call.Outcome = time.Now(), history.OK
		if err != nil {
			call.Outcome = history.Unknown
		}
		o.c.w.Called(call)
		if err == nil || !sleep(ctx, 300*time.Millisecond) {
			return
		}
	}
}
