package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// What a steward looks for: a job that did not succeed, of the kinds that may be run again any number of times, and one that waits.
// Jobs that fan out, or are part of it, are among them.
const (
	toRetrySQL = `
select d.id from trapeze.done d join trapeze.jobs j on j.id = d.id where d.state in ('failed', 'cancelled')
	and j.kind in ('demo.fail', 'demo.flaky', 'demo.sleep', 'demo.noop', 'demo.echo', 'demo.tx', 'demo.effect', 'demo.progress', 'demo.chain', 'demo.fanout')
order by random() limit 1`
	toNiceSQL = `
select id from (select id from trapeze.live where state = 'pending' union all select id from trapeze.parked) w order by random() limit 1`
)

// steward is an operator who runs jobs again, and lets others go earlier or later.
type steward struct {
	c *Crowd
	r *rand.Rand
}

// run steers a job every half a second or so, until ctx ends.
func (s *steward) run(ctx context.Context) {
	for n := 0; sleep(ctx, time.Duration(100+s.r.IntN(800))*time.Millisecond); n++ {
		verb, sql := "retry", toRetrySQL
		if s.r.IntN(2) == 0 {
			verb, sql = "nice", toNiceSQL
		}
		at, priority := s.r.IntN(60), s.r.IntN(201)-100
		var id int64
		looking, cancel := context.WithTimeout(ctx, sampleWithin)
		err := s.c.w.Admin.QueryRow(looking, sql).Scan(&id)
		cancel()
		if err != nil {
			continue // there is none, or the database is away
		}
		if pod, ok := s.c.pod(at); ok {
			s.c.steer(context.WithoutCancel(ctx), pod, verb, id, priority)
		}
	}
}

// steer runs a job again, or gives it another priority; verb is retry or nice.
func (c *Crowd) steer(ctx context.Context, pod *Pod, verb string, id int64, priority int) history.Call {
	call := c.begin(0, verb, pod)
	call.Job = id
	if verb == "retry" {
		c.send(ctx, &call, pod, http.MethodPost, fmt.Sprintf("/jobs/%d/retry", id), nil)
		return call
	}
	call.Priority = &priority
	body := json.RawMessage(fmt.Sprintf(`{"priority":%d}`, priority))
	c.send(ctx, &call, pod, http.MethodPatch, fmt.Sprintf("/admin/workers/jobs/%d/priority", id), body)
	return call
}
