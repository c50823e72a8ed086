package runnertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// leftSQL lists what keeps the harness from being idle: jobs that run, jobs that are due and may run, waiting jobs of which
// something is to be done. $1 are the kinds that have a handler here. A job that nobody may run, because its lane is off or the
// gate is closed, is no reason to wait.
const leftSQL = `
select l.id, l.kind, l.state, l.attempt, l.crashes,
	case when l.state = 'running' then coalesce((select p.name from trapeze.pods p where p.boot = l.pod), '') else '' end as pod
from trapeze.live l join trapeze.lanes n on n.name = l.lane
where l.state = 'running' or l.kind = any($1::text[]) and n.enabled and n.slots is distinct from 0 and n.slots_per_pod is distinct from 0
	and not (select paused from trapeze.gate)
union all
select id, kind, 'about to be due', attempt, crashes, '' from trapeze.parked
where why in ('scheduled', 'retry', 'retry_later') and run_after <= now()
union all
select f.id, j.kind, 'waiting, though its branches call for something', 0, 0, '' from trapeze.fan_outs f join trapeze.jobs j using (id)
where (f.open = 0) <> f.ended or f.fail_fast and f.failed > 0 and not f.ended
order by id limit 11`

// left is a job that is still to be seen to.
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

// lookEvery is how often RunUntilIdle looks whether all is done.
const lookEvery = 5 * time.Millisecond

// RunUntilIdle runs whatever is due, and what becomes due by that, until nothing is due or running: until all jobs have ended, or
// wait for a moment, for approval, for branches that do, or to be completed. When a pod dies it lets the lease pass, as by
// [Harness.Advance], and goes on with a new one. After [Harness].Patience it fails the test and says what there still was to do.
//
// Also done is what a runner does by the minute: ending what is too old, or was not approved in time.
func (h *Harness) RunUntilIdle() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), h.Patience)
	defer cancel()
	deadline := time.Now().Add(h.Patience)
	for {
		h.fatal(h.client.Maintain(ctx), "run until idle")
		if len(h.left()) == 0 {
			return // without the cost of a pod
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
		if !p.isDead() { // it can also have died as it stopped: the commit of the last end was seen before its reply
			return
		}
		h.fatal(h.bury(ctx, p), "take over from %s", p.name)
	}
}

// watchPod returns when the pod has died, when nothing is left to do, or at the deadline, with what is left.
func (h *Harness) watchPod(p *pod, deadline time.Time) []left {
	h.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
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
	h.fatal(err, "look what is left to do")
	rest, err := pgx.CollectRows(rows, pgx.RowToStructByPos[left])
	h.fatal(err, "look what is left to do")
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

// bury waits until the server has let go of a dead pod's connections, and lets its lease pass.
func (h *Harness) bury(ctx context.Context, p *pod) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		var open int
		// A statement that waits for a lock does not notice that nobody is there any more.
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
