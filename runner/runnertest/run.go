package runnertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// leftSQL lists the jobs that keep the harness from being idle: running jobs, due jobs that are allowed to start, and waiting jobs that
// need to be settled. $1 lists the kinds with a handler here. The query omits jobs that cannot start because their lane is disabled,
// drained or without slots, or because the queue is paused or frozen.
const leftSQL = `
select l.id, l.kind, l.state, l.attempt, l.crashes,
	case when l.state = 'running' then coalesce((select p.name from trapeze.pods p where p.id = l.pod), '') else '' end as pod
from trapeze.live l join trapeze.lanes n on n.name = l.lane
where l.state = 'running' or l.kind = any($1::text[]) and n.enabled and not n.drained and n.slots is distinct from 0 and n.slots_per_pod is distinct from 0
	and not (select paused or frozen from trapeze.queue_state)
union all
select id, kind, 'due, but not yet in its lane', attempt, crashes, '' from trapeze.parked
where why in ('scheduled', 'retry', 'snooze') and run_after <= now()
union all
select f.id, j.kind, 'waiting, although its branches have ended or failed', 0, 0, '' from trapeze.fan_outs f join trapeze.jobs j using (id)
where (f.open = 0) <> f.ended or f.fail_fast and f.failed > 0 and not f.ended
order by id limit 11`

// left is a job that keeps the harness from being idle.
type left struct {
	ID               int64
	Kind, State      string
	Attempt, Crashes int
	Pod              string
}

func (l left) String() string {
	switch {
	case l.Pod != "":
		return fmt.Sprintf("job %d (%s) is %s on %s: attempt %d, crashes %d", l.ID, l.Kind, l.State, l.Pod, l.Attempt, l.Crashes)
	default:
		return fmt.Sprintf("job %d (%s) is %s", l.ID, l.Kind, l.State)
	}
}

// RunUntilIdle checks for remaining jobs at intervals that grow from pollInterval to slowPollInterval, so that it reports a short run at once
// and costs little during a long one.
const (
	pollInterval     = 5 * time.Millisecond
	slowPollInterval = 50 * time.Millisecond
)

// RunUntilIdle runs all due jobs, and those that become due as a result, until no other job can run. The remaining jobs are waiting for a
// time, an approval, their branches or a completion, or are held back by a closed lane or queue. If the pod dies, RunUntilIdle lets its
// lease expire as [Harness.Advance] does, and continues with a new pod. After [Harness].Patience, it fails the test and lists the jobs that
// are left.
//
// It also performs a runner's periodic maintenance: it ends jobs that are too old or were not approved in time.
func (h *Harness) RunUntilIdle() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), h.Patience)
	defer cancel()
	deadline := time.Now().Add(h.Patience)
	for {
		h.fatal(h.client.Maintain(ctx), "run until idle")
		if len(h.left()) == 0 {
			return // no need to start a pod
		}
		p, err := h.startPod()
		h.fatal(err, "start a pod")
		rest := h.watchPod(p, deadline)
		if len(rest) > 0 && !p.isDead() {
			h.t.Fatalf("runnertest: not idle after %s:\n%s", h.Patience, list(rest))
		}
		p.stop()
		if !p.isDead() {
			h.fatal(p.close(), "stop a pod")
		}
		if !p.isDead() { // it may have died while stopping: the last commit may be visible before its reply arrives
			return
		}
		h.fatal(h.expire(ctx, p), "take over from %s", p.name)
	}
}

// watchPod waits until the pod has died, no jobs remain, or the deadline has passed, and returns the remaining jobs.
func (h *Harness) watchPod(p *pod, deadline time.Time) []left {
	h.t.Helper()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for began := time.Now(); ; tick.Reset(min(max(time.Since(began)/16, pollInterval), slowPollInterval)) {
		select {
		case <-p.dead:
			return nil
		case <-p.ended:
			h.t.Fatalf("runnertest: %s stopped: %v", p.name, p.err)
		case <-tick.C:
		}
		if rest := h.left(); len(rest) == 0 || time.Now().After(deadline) {
			return rest
		}
	}
}

func (h *Harness) left() []left {
	h.t.Helper()
	rows, err := h.host.Query(h.t.Context(), h.in(leftSQL), h.client.Kinds())
	h.fatal(err, "check for remaining work")
	rest, err := pgx.CollectRows(rows, pgx.RowToStructByPos[left])
	h.fatal(err, "check for remaining work")
	return rest
}

func list(rest []left) string {
	var lines []string
	for i, l := range rest {
		if i == 10 {
			lines = append(lines, "\t…")
			break
		}
		lines = append(lines, "\t"+l.String())
	}
	return strings.Join(lines, "\n")
}

// expire waits until the server has closed a dead pod's connections, and then lets the pod's lease expire.
func (h *Harness) expire(ctx context.Context, p *pod) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var open int
		// A statement that is waiting for a lock does not notice that its client has disconnected, so the sessions are terminated.
		err := h.host.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity
			where datname = current_database() and pid = any($1::int[])`, p.wire.processes()).Scan(&open)
		if err != nil {
			return err
		}
		if open == 0 {
			return h.advance(ctx, h.opts.LeaseFor)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of its connections are still open: %w", open, ctx.Err())
		}
	}
}
