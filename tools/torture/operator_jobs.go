package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// These queries select jobs for the steward: an unsuccessful job of a kind that can be retried any number of times, or a waiting job.
// Fan-outs and their branches can be selected too.
const (
	toRetrySQL = `
select d.id from trapeze.done d join trapeze.jobs j on j.id = d.id where d.state in ('failed', 'cancelled')
	and j.kind in ('demo.fail', 'demo.flaky', 'demo.sleep', 'demo.noop', 'demo.echo', 'demo.tx', 'demo.effect', 'demo.progress', 'demo.chain', 'demo.fanout')
order by random() limit 1`
	toNiceSQL = `
select id from (select id from trapeze.live where state = 'pending' union all select id from trapeze.parked) w order by random() limit 1`
)

// steward is an operator who retries some jobs and changes the priority of others.
type steward struct {
	c *Crowd
	r *rand.Rand
}

// run retries or reprioritizes a job about every half second until ctx is cancelled.
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
			continue // no job matches, or the database is down
		}
		if pod, ok := s.c.pod(at); ok {
			s.c.steer(context.WithoutCancel(ctx), pod, verb, id, priority)
		}
	}
}

// steer retries a job or changes its priority: verb is "retry" or "nice".
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
